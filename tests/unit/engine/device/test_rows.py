"""Rows with penalties own a slot from their first step to their last."""

from types import SimpleNamespace

from headrace.core.messages import Submit
from headrace.core.requests import SamplingParams
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.rows import RowSettings

PENALISED = SamplingParams(temperature=0.0, max_tokens=9, presence_penalty=1.0)


def _sequence(params: SamplingParams) -> SimpleNamespace:
    submit = Submit(request_id="r", reply_to="e", prompt_ids=[1, 2], params=params)
    return SimpleNamespace(
        submit=submit, token_ids=[1, 2, 3], num_prompt_tokens=2, seed=0, table=object()
    )


def test_slots_are_taken_kept_and_given_back(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=3, max_tokens=64)
    settings, seen = RowSettings(step), step.sampling.seen
    one, two = _sequence(PENALISED), _sequence(SamplingParams(temperature=0.0, max_tokens=9))
    settings.update([one, two], [2, 2])
    assert seen.num_free == 2
    settings.update([two, one], [3, 3])
    assert seen.num_free == 2
    assert step.sampling.positions_B.tolist() == [4, 4, 0]
    settings.update([two], [4])
    assert seen.num_free == 3


def test_a_sequence_that_comes_back_with_another_table_is_counted_anew(
    backend: DeviceBackend,
) -> None:
    step = backend.make_decode_step(max_rows=2, max_tokens=64)
    settings, seen = RowSettings(step), step.sampling.seen
    sequence = _sequence(PENALISED)
    settings.update([sequence], [2])
    seen.seen_PV[:, 9] = 5  # a token that was drawn and dropped
    sequence.table = object()
    settings.update([sequence], [2])
    assert seen.num_free == 1
    assert (seen.seen_PV[:, 9] == 0).any()
