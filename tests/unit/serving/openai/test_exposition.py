"""What Prometheus reads is valid, complete, and says what happened."""

from prometheus_client.parser import text_string_to_metric_families

from headrace.core.messages import Submit
from headrace.serving.openai.exposition import render
from tests.support.serving_fakes import beat, make_stack, say

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: bytes) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} appears twice"
            samples[key] = sample.value
    return samples


async def test_one_request_is_seen_in_every_metric_it_touches() -> None:
    def script(submit: Submit) -> object:
        ledger = {"transferred_tokens": 2, "bytes_received": 6400, "queue_s": 0.3}
        return say(submit, "abc", num_sessions=1, **ledger)

    stack = make_stack(script, is_metrics_open=True)  # type: ignore[arg-type]
    await stack.chat()
    samples = parse((await stack.client.get("/metrics")).content)
    assert samples["headrace_output_tokens_total", ()] == 3
    assert samples["headrace_finished_total", (("reason", "stop"),)] == 1
    assert samples["headrace_prompt_tokens_total", (("source", "transferred"),)] == 2
    assert samples["headrace_transfer_bytes_total", ()] == 6400
    assert samples["headrace_sequence_transfer_bytes_bucket", (("le", "1024.0"),)] == 0
    assert samples["headrace_sequence_transfer_bytes_bucket", (("le", "8192.0"),)] == 1
    assert samples["headrace_sessions_total", ()] == 1
    assert samples["headrace_ttft_seconds_count", ()] == 1
    assert samples["headrace_itl_seconds_count", ()] == 2
    assert samples["headrace_queue_seconds_bucket", (("le", "0.5"),)] == 1
    assert samples["headrace_queue_seconds_bucket", (("le", "0.2"),)] == 0
    assert samples["headrace_requests_in_flight", ()] == 0
    labels = (("endpoint", "/v1/chat/completions"), ("status", "200"))
    assert samples["headrace_requests_total", labels] == 1


def test_ranks_appear_with_their_gauges_and_their_own_counters() -> None:
    stack = make_stack()
    counters = {"headrace_steps_total": 3.0, "rank_waits_total": 2.0, "headrace_layer": -1.0}
    stack.registry.on_message(beat("decode0", 1, num_running=2, free_blocks=5, counters=counters))
    samples = parse(render(stack.front.metrics, stack.registry, num_calls=4))
    rank = (("rank", "1"), ("replica", "decode0"), ("role", "decode"))
    assert samples["headrace_running", rank] == 2
    assert samples["headrace_free_blocks", rank] == 5
    assert samples["headrace_rank_up", rank] == 1
    assert samples["headrace_rank_steps_total", rank] == 3
    assert samples["headrace_rank_waits_total", rank] == 2
    assert samples["headrace_rank_layer", rank] == -1
    assert samples["headrace_ready", ()] == 1
    assert samples["headrace_requests_in_flight", ()] == 4


def test_a_rank_cannot_overwrite_what_the_edge_counts() -> None:
    stack = make_stack()
    stack.registry.on_message(beat("decode0", 1, counters={"headrace_output_tokens_total": 9.0}))
    samples = parse(render(stack.front.metrics, stack.registry, num_calls=0))
    assert samples["headrace_output_tokens_total", ()] == 0


def test_further_counters_are_read_when_they_are_asked_for() -> None:
    stack, count = make_stack(), iter((3.0, 5.0))
    stack.front.metrics.further.append(lambda: {"headrace_edge_sent_total": next(count)})
    for expected in (3.0, 5.0):
        samples = parse(render(stack.front.metrics, stack.registry, num_calls=0))
        assert samples["headrace_edge_sent_total", ()] == expected
