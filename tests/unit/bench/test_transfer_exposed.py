"""The exposed share is told from the ledger, against the time to first token."""

from headrace.bench.transfer_exposed import describe_exposed, measure_exposed


async def test_a_real_deployment_tells_its_exposed_share(monkeypatch):
    monkeypatch.setattr("headrace.bench.transfer_exposed.PROMPT_TOKENS", 40)
    times = await measure_exposed("shm", repeats=2)
    assert len(times) == 2
    assert all(0 <= exposed_s < ttft_s for ttft_s, exposed_s in times)


def test_the_row_holds_the_median_share():
    row = describe_exposed("shm", [(1.0, 0.1), (1.0, 0.02), (2.0, 0.1)])
    assert (row["case"], row["value"], row["unit"]) == ("shm/exposed", 0.05, "of TTFT")
    assert (row["p50_us"], row["p99_us"], row["repeats"]) == (100_000.0, 100_000.0, 3)
