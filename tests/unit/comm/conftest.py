"""Fresh interpreters take seconds to import torch: the tests of this folder share four."""

import pytest

from tests.support.comm_ranks import rank_processes


@pytest.fixture(scope="session")
def processes():
    with rank_processes(4) as executor:
        yield executor
