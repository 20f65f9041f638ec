"""The ledger as people read it."""

import io

from rich.console import Console

from headrace.cli.ledger import ledger_rows, ledger_table
from headrace.core.requests import Ledger

LEDGER = Ledger(
    queue_s=0.0005,
    prefill_s=0.063,
    transfer_s=0.002,
    decode_s=2.0,
    cached_tokens=16,
    transferred_tokens=29,
    computed_tokens=1,
    output_tokens=30,
    bytes_expected=59392,
    bytes_received=59392,
    num_sessions=1,
    prefill_replica="prefill0",
    decode_rank=1,
)


def rows(ledger: Ledger) -> dict[str, tuple[str, str]]:
    return {name: (value, note) for name, value, note in ledger_rows(ledger)}


def test_times_tokens_bytes_and_places_are_all_there() -> None:
    assert rows(LEDGER) == {
        "queue": ("0.5 ms", "waiting for admission"),
        "prefill": ("63.0 ms", "prompt computed by prefill0"),
        "transfer": ("2.0 ms", "KV that compute did not hide"),
        "decode": ("2,000.0 ms", "on decode rank 1"),
        "prompt tokens": ("46", "29 transferred, 16 cached, 1 by the decode rank"),
        "output tokens": ("30", "15.0 tokens/s"),
        "KV received": ("59,392 bytes", "59,392 expected, 1 session"),
    }


def test_work_done_again_is_told_only_when_there_was_some() -> None:
    again = rows(Ledger(recomputed_tokens=40, num_preemptions=2))
    assert again["computed again"] == ("40 tokens", "2 preemptions")
    assert "computed again" not in rows(LEDGER)


def test_a_local_prompt_names_no_replica() -> None:
    assert rows(Ledger())["prefill"][1] == "prompt computed by the decode rank itself"


def test_the_table_shows_every_row_within_a_narrow_terminal() -> None:
    file = io.StringIO()
    Console(file=file, width=80).print(ledger_table(LEDGER))
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines if line[0] != " "] == list(rows(LEDGER))
    assert max(map(len, lines)) <= 80
