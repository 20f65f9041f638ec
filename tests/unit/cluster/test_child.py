"""A rank's process cannot outlive its supervisor."""

import os
import signal
import subprocess
import sys

import pytest

from headrace.cluster.child import command_of
from tests.support.cluster_deployment import is_running
from tests.support.cluster_waiting import until

NAME = "OMP_WAIT_POLICY"


def test_the_child_becomes_the_command():
    command = command_of(("/bin/sh", "-c", "echo $0 $PPID", "x"), supervisor_pid=os.getpid())
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["x", str(os.getpid())]


@pytest.mark.parametrize(("own_choice", "expected"), [({}, "PASSIVE"), ({NAME: "x"}, "x")])
def test_compute_threads_sleep_unless_the_operator_says_otherwise(own_choice, expected):
    environment = {name: value for name, value in os.environ.items() if name != NAME} | own_choice
    command = command_of(("/bin/sh", "-c", f"echo ${NAME}"), supervisor_pid=os.getpid())
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.strip() == expected


def test_a_child_whose_supervisor_is_gone_does_not_start():
    command = command_of(("/bin/echo", "started"), supervisor_pid=1)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "the supervisor (process 1) is gone\n"


def test_the_kernel_kills_the_child_with_its_supervisor():
    code = f"""
import os, subprocess, sys
sys.path[:0] = {sys.path!r}
from headrace.cluster.child import command_of
child = ("/bin/sh", "-c", "trap '' TERM HUP INT; echo $$; exec sleep 600")
subprocess.run(command_of(child, supervisor_pid=os.getpid()))
"""
    supervisor = subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE)
    child_pid = int(supervisor.stdout.readline())
    assert is_running(child_pid)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.communicate()
    until(lambda: not is_running(child_pid))
