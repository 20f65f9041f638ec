"""Usage comes from ledgers: prompts once, outputs all."""

from headrace.core.messages import Output
from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.usage import Usage, cached_tokens


def last(token_ids: list[int], ledger: Ledger | None) -> Output:
    return Output(
        request_id="r",
        choice=0,
        token_ids=token_ids,
        finish_reason=FinishReason.STOP,
        ledger=ledger,
    )


def test_choices_share_their_prompt_and_its_cached_tokens() -> None:
    usage = Usage(30, choices_per_prompt=2)
    for index in range(4):
        usage.add(index, Output(request_id="r", choice=0, token_ids=[1, 2]))
        usage.add(index, last([3], Ledger(cached_tokens=8, reasoning_tokens=2)))
    assert usage.to_dict() == {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }


def test_tokens_found_on_either_side_count_as_cached_once() -> None:
    assert cached_tokens(Ledger(cached_tokens=16, prefiller_cached_tokens=32)) == 32
    assert cached_tokens(Ledger(cached_tokens=32, prefiller_cached_tokens=16)) == 32


def test_the_ledger_of_a_call_is_the_sum_of_its_choices() -> None:
    usage = Usage(30, choices_per_prompt=2, has_ledger=True)
    usage.add(0, last([1], Ledger(queue_s=0.5, transferred_tokens=9, bytes_received=640)))
    usage.add(1, last([1], Ledger(queue_s=1.0, cached_tokens=10, num_retries=1)))
    ledger = usage.to_dict()["ledger"]
    assert (ledger["queue_s"], ledger["bytes_received"], ledger["num_retries"]) == (1.5, 640, 1)
    assert (ledger["cached_tokens"], ledger["transferred_tokens"]) == (10, 9)
    names = {"prefill_replica", "decode_replica", "decode_rank"}
    assert ledger.keys() == set(Ledger.__struct_fields__) - names


def test_a_ledger_that_comes_before_the_end_is_not_counted_twice() -> None:
    usage = Usage(30, choices_per_prompt=1, has_ledger=True)
    early = Output(request_id="r", choice=0, token_ids=[1], ledger=Ledger(cached_tokens=8))
    usage.add(0, early)
    usage.add(0, last([1], Ledger(cached_tokens=8)))
    assert usage.to_dict()["ledger"]["cached_tokens"] == 8
    assert usage.to_dict()["prompt_tokens_details"] == {"cached_tokens": 8}


def test_an_output_without_a_ledger_still_counts_its_tokens() -> None:
    usage = Usage(3, choices_per_prompt=1)
    usage.add(0, last([1], None))
    assert usage.to_dict()["total_tokens"] == 4
