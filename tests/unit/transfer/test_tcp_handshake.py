import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.transfer.tcp_handshake import (
    CHALLENGE_BYTES,
    MAX_HELLO_BYTES,
    PREFIX_BYTES,
    PROOF_BYTES,
    VERDICT_BYTES,
    Hello,
    Keys,
    OwnerHandshake,
    Verdict,
    WriterHandshake,
)
from tests.support.transfer_tcp import make_hello

KEY = b"a key of a deployment"


class Exchange:
    """One whole handshake, message by message."""

    def __init__(self, writer_key: bytes = KEY, owner_key: bytes = KEY) -> None:
        self.writer = WriterHandshake(writer_key, make_hello())
        self.owner = OwnerHandshake(owner_key)
        self.said = self.writer.hello()

    def hello(self) -> bytes:
        length = self.owner.hello_bytes(self.said[:PREFIX_BYTES])
        assert length == len(self.said) - PREFIX_BYTES
        return self.said[PREFIX_BYTES:]

    def run(self, verdict: Verdict = Verdict.TAKEN) -> tuple[Hello, Keys, Keys]:
        hello, challenge = self.owner.challenge(self.hello())
        assert len(challenge) == CHALLENGE_BYTES
        proof = self.writer.prove(challenge)
        assert len(proof) == PROOF_BYTES
        keys = self.owner.finish(proof)
        told = self.owner.verdict(keys, verdict)
        assert len(told) == VERDICT_BYTES
        return hello, keys, self.writer.finish(told)


def test_both_sides_end_with_the_same_keys_one_per_direction() -> None:
    hello, ours, theirs = Exchange().run()
    assert ours == theirs
    assert ours.to_owner != ours.to_writer
    assert (hello.owner, hello.rank, hello.generation) == ("prefill.3", 3, 7)


def test_no_two_sockets_have_the_same_keys() -> None:
    keys = [Exchange().run()[1] for _ in range(4)]
    assert len({key for pair in keys for key in (pair.to_owner, pair.to_writer)}) == 8


def test_an_owner_without_the_key_is_found_out_before_the_writer_proves_anything() -> None:
    exchange = Exchange(owner_key=b"another key")
    _, challenge = exchange.owner.challenge(exchange.hello())
    with pytest.raises(ProtocolError, match="does not hold this deployment's key"):
        exchange.writer.prove(challenge)


def test_a_writer_without_the_key_is_refused() -> None:
    exchange = Exchange()
    exchange.owner.challenge(exchange.hello())
    for proof in (b"", bytes(PROOF_BYTES), b"x" * PROOF_BYTES):
        with pytest.raises(ProtocolError, match="does not hold"):
            exchange.owner.finish(proof)


def test_a_recorded_proof_opens_no_second_socket() -> None:
    first = Exchange()
    _, challenge = first.owner.challenge(first.hello())
    proof = first.writer.prove(challenge)
    first.owner.finish(proof)
    again = OwnerHandshake(KEY)
    again.challenge(first.hello())
    with pytest.raises(ProtocolError, match="does not hold"):
        again.finish(proof)


def test_a_proof_cannot_be_reflected() -> None:
    """The owner's own proof, sent back to it, is not a writer's."""
    exchange = Exchange()
    _, challenge = exchange.owner.challenge(exchange.hello())
    with pytest.raises(ProtocolError, match="does not hold"):
        exchange.owner.finish(challenge[-PROOF_BYTES:])


@pytest.mark.parametrize("verdict", [one for one in Verdict if one is not Verdict.TAKEN])
def test_a_refusal_says_why(verdict: Verdict) -> None:
    words = verdict.name.lower().replace("_", " ")
    with pytest.raises(ProtocolError, match=f"refused the connection: {words}"):
        Exchange().run(verdict)


def test_a_forged_verdict_is_not_believed() -> None:
    exchange = Exchange()
    _, challenge = exchange.owner.challenge(exchange.hello())
    keys = exchange.owner.finish(exchange.writer.prove(challenge))
    refused = exchange.owner.verdict(keys, Verdict.TOO_MANY)
    with pytest.raises(ProtocolError, match="not authentic"):
        exchange.writer.finish(bytes([Verdict.TAKEN]) + refused[1:])


def test_another_version_is_told_apart() -> None:
    said = msgspec.msgpack.encode(make_hello(version=99))
    with pytest.raises(ProtocolError, match="version 99: this rank speaks 1"):
        OwnerHandshake(KEY).challenge(said)


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_what_does_not_begin_like_a_hello_is_refused(noise: bytes) -> None:
    with pytest.raises(ProtocolError, match="hello"):
        OwnerHandshake.hello_bytes(noise)
    too_long = b"HRKV" + (MAX_HELLO_BYTES + 1).to_bytes(2, "big")
    with pytest.raises(ProtocolError, match="hello"):
        OwnerHandshake.hello_bytes(too_long)


@given(st.binary(max_size=MAX_HELLO_BYTES))
def test_a_hello_of_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(ProtocolError, match="hello"):
        OwnerHandshake(KEY).challenge(noise)


@given(st.data())
def test_a_handshake_with_a_flipped_bit_never_opens(data: st.DataObject) -> None:
    exchange = Exchange()
    which = data.draw(st.sampled_from(["hello", "challenge", "proof"]))

    def spoil(message: bytes, name: str) -> bytes:
        if name != which:
            return message
        bit = data.draw(st.integers(0, 8 * len(message) - 1))
        spoilt = bytearray(message)
        spoilt[bit // 8] ^= 1 << bit % 8
        return bytes(spoilt)

    def shake_hands() -> None:
        _, challenge = exchange.owner.challenge(spoil(exchange.hello(), "hello"))
        proof = exchange.writer.prove(spoil(challenge, "challenge"))
        exchange.owner.finish(spoil(proof, "proof"))

    with pytest.raises(ProtocolError):
        shake_hands()
