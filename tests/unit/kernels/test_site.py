"""A site describes the device at hand, or says that there is none."""

import pytest
import torch

from headrace.core.errors import ConfigError
from headrace.kernels.site import detect_site


def test_a_cpu_has_no_capability_and_keeps_the_sizes() -> None:
    site = detect_site("cpu", dtype="float32", sizes={"head_dim": 64})
    assert (site.device, site.capability, site.num_processors) == ("cpu", (0, 0), 0)
    assert site.sizes == {"head_dim": 64}


def test_libraries_are_those_that_can_be_found() -> None:
    assert "triton" in detect_site("cpu", dtype="float32", sizes={}).libraries


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="use device=cpu"):
        detect_site("cuda", dtype="bfloat16", sizes={})
