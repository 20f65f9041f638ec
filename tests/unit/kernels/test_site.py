"""A site is what torch and the import system say of a device, asked once."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from headrace.core.errors import ConfigError
from headrace.kernels.site import detect_site


def test_a_cpu_has_no_capability():
    site = detect_site("cpu", dtype="float32", sizes={"head_dim": 64})
    assert (site.device, site.capability, site.num_processors) == ("cpu", (0, 0), 0)
    assert (site.dtype, site.sizes) == ("float32", {"head_dim": 64})


def test_a_device_that_is_not_there_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device=cuda:0: .*False here; use device=cpu"):
        detect_site("cuda:0", dtype="bfloat16", sizes={})


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:-1", ""])
def test_a_name_that_is_no_device_is_refused(device):
    with pytest.raises(ConfigError, match="expected cpu, cuda or cuda:N"):
        detect_site(device, dtype="bfloat16", sizes={})


def test_a_device_past_the_last_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="shows 2 GPUs"):
        detect_site("cuda:2", dtype="bfloat16", sizes={})


def test_a_device_is_described_by_its_properties(monkeypatch):
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    site = detect_site("cuda:1", dtype="bfloat16", sizes={}, kv_dtype="float8_e4m3fn")
    assert (site.device, site.capability, site.num_processors) == ("cuda", (9, 0), 132)
    assert site.kv_dtype == "float8_e4m3fn"


def test_libraries_are_found_without_being_imported(monkeypatch):
    present = ModuleType("quack")
    present.__spec__ = ModuleSpec("quack", None)
    monkeypatch.setitem(sys.modules, "quack", present)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    libraries = detect_site("cpu", dtype="float32", sizes={}).libraries
    assert "quack" in libraries
    assert "flash_attn.cute" not in libraries


@pytest.mark.parametrize("error", ["ImportError('undefined symbol')", "OSError('libcudart.so')"])
def test_a_package_that_cannot_be_imported_is_not_there(monkeypatch, tmp_path, error):
    package = tmp_path / "flash_attn"
    (package / "cute").mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise {error}\n")
    (package / "cute" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    libraries = detect_site("cpu", dtype="float32", sizes={}).libraries
    assert "flash_attn.cute" not in libraries
