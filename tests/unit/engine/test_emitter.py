"""Every way in which a sequence ends, decided in one place."""

from __future__ import annotations

from headrace.core.messages import Message, Outputs, Submit
from headrace.core.requests import FinishReason, SamplingParams
from headrace.engine.emitter import Emitter
from headrace.engine.sequence import Sequence, make_sequences
from headrace.text.output import OutputTextStream
from tests.support.text_tokenizers import byte_tokenizer

EOS = 258


class Edge:
    """Collects what an emitter sends."""

    def __init__(self, max_model_tokens: int = 100) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.emitter = Emitter(
            rank=3,
            eos_token_ids=[EOS],
            max_model_tokens=max_model_tokens,
            send=lambda address, message: self.sent.append((address, message)),
        )

    def play(self, sequence: Sequence, text: bytes | list[int]) -> FinishReason | None:
        reason = None
        for token in text:
            reason = self.emitter.take_token(sequence, token)
            if reason is not None:
                break
        self.emitter.flush()
        return reason

    def text(self) -> str:
        return "".join(
            out.text for _, one in self.sent if isinstance(one, Outputs) for out in one.outputs
        )


def make(reply_to: str = "edge", **params: object) -> Sequence:
    params = {"max_tokens": 50} | params
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    submit = Submit(request_id="r", reply_to=reply_to, prompt_ids=[1], params=settings)
    stream = OutputTextStream(
        byte_tokenizer(), stop=settings.stop, include_stop=settings.include_stop
    )
    (sequence,) = make_sequences(
        submit, first_order=0, now_s=0.0, vocab_size=300, open_text=lambda: stream
    )
    return sequence


def test_eos_stops_and_is_no_text() -> None:
    edge = Edge()
    assert edge.play(make(), [*b"hi", EOS]) is FinishReason.STOP
    assert edge.text() == "hi"


def test_eos_can_be_ignored_to_the_limit() -> None:
    edge = Edge()
    sequence = make(max_tokens=3, ignore_eos=True)
    assert edge.play(sequence, [EOS] * 9) is FinishReason.LENGTH
    assert sequence.num_output_tokens == 3


def test_stop_tokens_of_the_request_stop_too() -> None:
    edge = Edge()
    assert edge.play(make(stop_token_ids=(33,)), b"ab!cd") is FinishReason.STOP
    assert edge.text() == "ab"


def test_stop_strings_end_the_text_before_them_and_beat_the_limit() -> None:
    edge = Edge()
    assert edge.play(make(stop=("END",), max_tokens=5), b"abENDxyz") is FinishReason.STOP
    assert edge.text() == "ab"


def test_held_text_comes_out_when_the_limit_ends_the_sequence() -> None:
    edge = Edge()
    assert edge.play(make(stop=("\nEND",), max_tokens=3), b"a\nE") is FinishReason.LENGTH
    assert edge.text() == "a\nE"


def test_the_context_limit_ends_a_sequence() -> None:
    edge = Edge(max_model_tokens=4)
    assert edge.play(make(), b"abcdefg") is FinishReason.LENGTH
    assert edge.text() == "abc"


def test_outputs_are_grouped_by_edge_and_the_last_carries_the_ledger() -> None:
    edge = Edge()
    first, second = make("one", max_tokens=1), make("two")
    first.owes_ledger = second.owes_ledger = False
    edge.emitter.take_token(first, 65)
    edge.emitter.take_token(second, 66)
    edge.emitter.flush()
    edge.emitter.flush()
    assert [address for address, _ in edge.sent] == ["one", "two"]
    (ended,), (open_,) = (message.outputs for _, message in edge.sent)
    assert ended.ledger is not None
    assert (ended.ledger.output_tokens, ended.ledger.decode_rank) == (1, 3)
    assert open_.ledger is None


def test_the_first_output_after_each_start_tells_what_bringing_the_kv_took() -> None:
    edge, sequence = Edge(), make()
    edge.play(sequence, b"ab")
    sequence.owes_ledger = True
    edge.play(sequence, b"cd")
    told = [one.ledger is not None for _, message in edge.sent for one in message.outputs]
    assert told == [True, False, True, False]


def test_failures_carry_their_line() -> None:
    edge = Edge()
    edge.emitter.fail(make(), "rank 1 is gone")
    edge.emitter.flush()
    (output,) = edge.sent[0][1].outputs
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "rank 1 is gone")
