"""What a bench refuses before it measures, and what it puts together for a device."""

from types import SimpleNamespace

import pytest
import torch

from headrace.bench.device import run
from headrace.bench.device.ceilings import Ceilings
from headrace.core.errors import ConfigError
from headrace.kernels.catalogue import Site
from tests.support.device_timer import MACHINE, FakeTimer


@pytest.fixture
def device(monkeypatch):
    """Pretend that there is a device; return what was asked of it."""
    asked = SimpleNamespace(current=None, benches=[])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(asked, "current", device))
    monkeypatch.setattr(run, "detect_site", lambda device, dtype, sizes: Site(dtype=dtype))
    monkeypatch.setattr(run, "CudaTimer", FakeTimer)
    ceilings = Ceilings(read_bytes_per_s=1e12, flops_per_s=1e12)
    monkeypatch.setattr(run, "measure_ceilings", lambda timer, device: ceilings)
    monkeypatch.setattr(run, "describe_machine", lambda device: MACHINE)

    def measure(families, bench, *, matching):
        asked.benches.append(([each.family.name for each in families], bench, matching))
        yield "a result"

    monkeypatch.setattr(run, "measure", measure)
    return asked


def test_without_a_device_one_line_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = r"^bench kernels needs a CUDA device: torch\.cuda\.is_available\(\) is False here$"
    with pytest.raises(ConfigError, match=line):
        list(run.run_bench("kernels", []))


@pytest.mark.parametrize("name", ["cpu", "tpu:0", "cuda"])
def test_another_device_is_refused(device, name):
    with pytest.raises(ConfigError, match=r"such as cuda:0, got"):
        list(run.run_bench("kernels", [], device=name))


def test_cases_that_do_not_exist_are_refused_before_anything_is_measured(device):
    with pytest.raises(ConfigError, match=r"--case 'b7': no case has this in its name"):
        list(run.run_bench("kernels", ["route"], matching="b7"))
    assert not device.benches


def test_a_bench_is_put_together_for_its_device(device):
    results = list(
        run.run_bench("attention", ["route"], device="cuda:1", matching="t8", num_replays=9)
    )
    assert results == ["a result"]
    ((families, bench, matching),) = device.benches
    assert (families, matching, device.current) == (["route"], "t8", "cuda:1")
    assert (bench.name, bench.num_replays, bench.site.dtype) == ("attention", 9, "bfloat16")
