"""What a step drew reaches the host with what its rows asked for."""

import numpy as np
import pytest

from headrace.core.messages import Submit
from headrace.core.requests import SamplingParams
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.readback import Readback
from headrace.kernels.sampling.device_settings import DeviceRow


def test_results_stay_those_of_their_step_when_the_next_has_run(backend: DeviceBackend) -> None:
    step = backend.make_decode_step(max_rows=2, max_tokens=64)
    plain = SamplingParams(temperature=0.0, max_tokens=5)
    asking = SamplingParams(temperature=0.0, max_tokens=5, logprobs=True, top_logprobs=2)
    submits = [
        Submit(request_id="a", reply_to="e", prompt_ids=[1], params=plain, trace=True),
        Submit(request_id="b", reply_to="e", prompt_ids=[2], params=asking),
    ]
    rows = [DeviceRow.of(each.params, seed=0, vocab_size=backend.vocab_size) for each in submits]
    step.sampling.update(rows, positions=[1, 1])
    tables = np.array([[1, 0, 0, 0], [2, 0, 0, 0]], dtype=np.int32)
    step.set_rows(sources=[-1, -1], token_ids=[1, 2], positions=[0, 0], tables=tables)
    step.run(2)
    drawn = Readback(step).enqueue(submits)
    logits = step.logits(2).clone()
    step.run(2)
    tokens, is_ok, logprobs = drawn.read()
    assert tokens == logits.argmax(1).tolist()
    assert is_ok == [True, True]
    assert logprobs[0] is None
    assert logprobs[1] is not None
    assert logprobs[1].token_id == tokens[1] == logprobs[1].top[0][0]
    expected = logits[1].log_softmax(0)[tokens[1]]
    assert logprobs[1].logprob == pytest.approx(float(expected), abs=1e-5)
    assert np.array_equal(drawn.logits(0), logits[0].numpy())


def test_rows_that_ask_for_other_numbers_of_alternatives_each_get_their_own(
    backend: DeviceBackend,
) -> None:
    step = backend.make_decode_step(max_rows=4, max_tokens=64)
    tops = [3, None, 0, 1]
    submits = [
        Submit(
            request_id=str(index),
            reply_to="e",
            prompt_ids=[1],
            params=SamplingParams(
                temperature=0.0, max_tokens=5, logprobs=top is not None, top_logprobs=top or 0
            ),
        )
        for index, top in enumerate(tops)
    ]
    rows = [DeviceRow.of(each.params, seed=0, vocab_size=backend.vocab_size) for each in submits]
    step.sampling.update(rows, positions=[1] * 4)
    tables = np.array([[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0]], dtype=np.int32)
    step.set_rows(sources=[-1] * 4, token_ids=[1, 2, 3, 4], positions=[0] * 4, tables=tables)
    step.run(4)
    tokens, _, logprobs = Readback(step).enqueue(submits).read()
    expected = step.logits(4).log_softmax(1)
    for row, top in enumerate(tops):
        entry = logprobs[row]
        if top is None:
            assert entry is None
            continue
        assert entry is not None
        assert entry.token_id == tokens[row]
        values, ids = expected[row].topk(top)
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-5)
