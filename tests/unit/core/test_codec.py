"""Frames are believed whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.codec import MAX_FRAME_BYTES, Codec
from headrace.core.errors import ProtocolError
from headrace.core.messages import Abort, Message, Output, Outputs, Submit, TokenLogprob, Wake
from headrace.core.requests import FinishReason, Ledger, SamplingParams
from tests.support.hostile import plain, received

KEY = b"0123456789abcdef"


def test_messages_survive_the_wire() -> None:
    codec = Codec(KEY)
    messages = [
        Submit(
            request_id="r1",
            reply_to="ipc://x",
            prompt_ids=[1, 2, 3],
            params=SamplingParams(max_tokens=4, logit_bias={7: -1.5}, stop=("a", "b")),
        ),
        Outputs(
            rank=1,
            outputs=[
                Output(
                    request_id="r1",
                    choice=0,
                    token_ids=[9],
                    text="hi",
                    logprobs=[TokenLogprob(9, -0.5, [(9, -0.5)])],
                    finish_reason=FinishReason.STOP,
                    ledger=Ledger(output_tokens=1),
                )
            ],
        ),
        Wake(step=2**40),
    ]
    assert [codec.decode(codec.encode(message)) for message in messages] == messages


@given(st.integers(min_value=0), st.integers(1, 255))
def test_a_flipped_byte_is_refused(position: int, flip: int) -> None:
    frame = bytearray(Codec(KEY).encode(Abort(request_id="r")))
    frame[position % len(frame)] ^= flip
    with pytest.raises(ProtocolError):
        Codec(KEY).decode(bytes(frame))


@given(st.binary(max_size=200))
def test_noise_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        Codec(KEY).decode(frame)


def test_another_deployments_key_is_refused() -> None:
    frame = Codec(b"f" * 16).encode(Wake(step=1))
    with pytest.raises(ProtocolError, match="wrong key"):
        Codec(KEY).decode(frame)


def test_another_version_is_named() -> None:
    frame = bytearray(Codec(KEY).encode(Wake(step=1)))
    frame[2:4] = (99).to_bytes(2, "big")
    with pytest.raises(ProtocolError, match="version 99: this process speaks 1"):
        Codec(KEY).decode(bytes(frame))


def test_oversized_frames_are_refused_before_parsing() -> None:
    with pytest.raises(ProtocolError, match="size limits"):
        Codec(KEY).decode(bytes(MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match="the limit is"):
        Codec(KEY).encode(Abort(request_id="x" * MAX_FRAME_BYTES))


def test_short_keys_are_refused() -> None:
    with pytest.raises(ProtocolError, match="at least 16"):
        Codec(b"short")


def test_a_layout_that_cannot_be_is_refused_like_any_other_frame() -> None:
    layout = {"layers": [], "first_head": 0, "num_heads": 1, "num_blocks": 1, "block_size": 17}
    region = {"transport": "shm", "name": "n", "doorbell": "b", "rank": 0, "generation": 1}
    request: Any = {
        "type": "PrefillRequest",
        "session_id": "s",
        "imm": 1,
        "reply_to": "x",
        "token_ids": [1, 2],
        "start": 0,
        "block_ids": [0],
        "target": {**region, "num_bytes": 1, "layout": layout},
    }
    with pytest.raises(ProtocolError, match="block_size=17"):
        Codec(KEY).decode(Codec(KEY).encode(request))


@given(st.one_of(plain(kind) for kind in Message.__subclasses__()))
def test_any_object_of_a_known_type_is_a_message_or_refused(data: Any) -> None:
    message = received(data)
    assert message is None or type(message).__name__ == data["type"]
