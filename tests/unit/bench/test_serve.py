"""One load against a server: its model asked for, all requests sent, failures told."""

import pytest

from headrace.bench.serve import WARM_UP, Load, find_model, run_load
from headrace.bench.workload import made_up
from headrace.core.errors import ConfigError
from tests.support.bench_server import CannedServer, answer, canned


@pytest.mark.parametrize("concurrency", [0, 3])
def test_every_request_is_sent_once_besides_the_warm_up(concurrency):
    server = CannedServer(answer(4))
    requests = made_up(20, prompt_tokens=5, output_tokens=4, rate=0.0 if concurrency else 500.0)
    with canned(server) as url:
        outcomes = run_load(Load(requests, concurrency), url=url)
    assert len(outcomes) == 20
    assert len(server.requests) == 20 + WARM_UP
    assert all(b'"model": "canned"' in one for one in server.requests)
    assert sum(one.num_tokens for one in outcomes) == 80


def test_nobody_there_is_one_clear_line():
    with pytest.raises(ConfigError, match="nobody answers at http://127.0.0.1:9"):
        find_model("http://127.0.0.1:9")
