"""Each pair really moves the bytes of its writes."""

import numpy as np
import pytest

from headrace.bench.transfer_peers import LAYOUT, MemcpyPair, SocketPair, TransportPair
from headrace.core.transport import Fragments


@pytest.mark.parametrize(
    "make",
    [MemcpyPair, SocketPair, lambda s: TransportPair("shm", s), lambda s: TransportPair("tcp", s)],
    ids=["memcpy", "socket", "shm", "tcp"],
)
def test_a_pair_moves_what_it_is_given_and_ends(make):
    source = np.zeros(LAYOUT.num_bytes, np.uint8)
    one = Fragments(*np.array([[0], [4096], [1024]], np.int64))
    several = Fragments(*np.array([[0, 8192], [8192, 0], [512, 512]], np.int64))
    pair = make(source)
    try:
        assert pair.time([one, several]) > 0
        assert pair.time([several]) > 0
    finally:
        pair.close()
