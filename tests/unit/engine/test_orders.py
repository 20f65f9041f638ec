"""Orders end a generation once, in the way first asked for unless it is the end of everything."""

from headrace.core.messages import Reform, Shutdown, Wake
from headrace.engine.orders import Orders


def test_a_shutdown_ends_everything():
    orders = Orders(generation=3)
    assert not orders.is_leaving
    assert orders.take(Shutdown())
    assert (orders.is_leaving, orders.following) == (True, None)
    assert orders.take(Reform(generation=4))
    assert orders.following is None


def test_a_later_generation_is_followed_and_an_old_one_is_not():
    orders = Orders(generation=3)
    for late in (2, 3):
        assert orders.take(Reform(generation=late))
        assert not orders.is_leaving
    assert orders.take(Reform(generation=5))
    assert (orders.is_leaving, orders.following) == (True, 5)
    assert orders.take(Shutdown())
    assert orders.following is None


def test_other_messages_are_not_orders():
    orders = Orders(generation=1)
    assert not orders.take(Wake(step=1))
    assert not orders.is_leaving
