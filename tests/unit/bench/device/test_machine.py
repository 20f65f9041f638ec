"""A machine is described by what torch and nvidia-smi say, as far as they say it."""

import subprocess
from types import SimpleNamespace

import torch

from headrace.bench.device.machine import ask_smi, describe_machine, package_versions


def _answer(text):
    return lambda command: text


def test_clocks_and_driver_are_read():
    driver, clocks = ask_smi("ab", run=_answer("570.86, 1980, 1980, 3201, 700.00\n"))
    assert driver == "570.86"
    assert clocks == {
        "sm_mhz": 1980.0,
        "max_sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "power_limit_w": 700.0,
    }


def test_what_nvidia_smi_does_not_know_is_absent():
    assert ask_smi("ab", run=_answer("570.86, [N/A], 1980, [N/A], 700\n"))[1] == {
        "max_sm_mhz": 1980.0,
        "power_limit_w": 700.0,
    }


def test_a_machine_without_nvidia_smi_has_no_clocks():
    def absent(command):
        raise FileNotFoundError(command[0])

    def failing(command):
        raise subprocess.CalledProcessError(6, command)

    assert ask_smi("ab", run=absent) == ("", {})
    assert ask_smi("ab", run=failing) == ("", {})


def test_the_device_is_asked_for_by_its_own_identity(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA X", multi_processor_count=7, uuid="1-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    asked = []

    def run(command):
        asked.extend(command)
        return "1.2, 1, 2, 3, 4"

    machine = describe_machine("cuda:1", run=run)
    assert machine.name.startswith("NVIDIA X; ")
    assert (machine.num_processors, machine.driver) == (7, "1.2")
    assert "--id=GPU-1-2" in asked


def test_only_installed_packages_have_versions():
    assert "flash-attn-4" not in package_versions()
    assert all(package_versions().values())
