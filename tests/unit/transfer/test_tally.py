import threading

from headrace.transfer.tally import Tally


def test_what_was_never_counted_is_zero() -> None:
    assert Tally()["writes"] == 0


def test_no_count_of_any_thread_is_lost() -> None:
    tally = Tally()

    def count() -> None:
        for _ in range(2000):
            tally.add(writes=1, bytes=3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally["writes"], tally["bytes"]) == (8000, 24_000)
