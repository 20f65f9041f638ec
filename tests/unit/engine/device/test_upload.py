"""What is uploaded is a copy of its own, in the dtype asked for."""

import numpy as np
import pytest
import torch

from headrace.engine.device.upload import upload

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "values", [[], [3, 1, 2], np.arange(6).reshape(2, 3).T], ids=["none", "list", "transposed"]
)
def test_values_keep_their_shape_and_order(values) -> None:
    tensor = upload(values, np.int32, device=CPU)
    assert tensor.dtype is torch.int32
    assert tensor.is_contiguous()
    assert tensor.tolist() == np.asarray(values).tolist()


def test_the_callers_array_may_change_afterwards() -> None:
    table = np.zeros(4, dtype=np.int32)
    tensor = upload(table, np.int32, device=CPU)
    table[:] = 9
    assert tensor.tolist() == [0, 0, 0, 0]
