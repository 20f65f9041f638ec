"""A server of one's own comes up, answers, and is gone afterwards."""

import os
import signal
import urllib.request

import pytest

from headrace.cli.bench_server import serving
from headrace.core.errors import ReplicaError
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig
from tests.support.cli_process import children, wait_gone


def test_it_serves_as_long_as_the_context_lasts():
    config = DeploymentConfig(mono=ReplicaConfig(), serving=ServingConfig(port=8000))
    before = set(children(os.getpid()))
    with serving(config) as url:
        with urllib.request.urlopen(f"{url}/ready") as answer:
            assert answer.status == 200
        started = sorted(set(children(os.getpid())) - before)
        assert started
    wait_gone(started)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_does_not_come_up_is_an_error(tmp_path):
    config = DeploymentConfig(model=str(tmp_path / "absent"))
    refused = pytest.raises(ReplicaError, match="ended with exit code 2 before it served")
    with refused, serving(config):
        pass
