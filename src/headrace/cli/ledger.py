"""A request's ledger for people: where its time, tokens and bytes went."""

from __future__ import annotations

from rich.table import Table

from headrace.core.requests import Ledger


def ledger_table(ledger: Ledger) -> Table:
    """Return the ledger as a small table of (what, how much, what it means)."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("what", "value", "note"):
        table.add_column(name, style="dim" if name == "note" else "", no_wrap=name != "note")
    for row in ledger_rows(ledger):
        table.add_row(*row)
    return table


def ledger_rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return (name, value, meaning) of everything that a reader wants to see."""
    where = ledger.prefill_replica or "the decode rank itself"
    rows = [
        ("queue", _ms(ledger.queue_s), "waiting for admission"),
        ("prefill", _ms(ledger.prefill_s), f"prompt computed by {where}"),
        ("transfer", _ms(ledger.transfer_s), "KV that compute did not hide"),
        ("decode", _ms(ledger.decode_s), f"on decode rank {ledger.decode_rank}"),
        ("prompt tokens", str(_prompt_tokens(ledger)), _sources(ledger)),
        ("output tokens", str(ledger.output_tokens), _speed(ledger)),
        ("KV received", f"{ledger.bytes_received:,} bytes", _sessions(ledger)),
    ]
    if ledger.recomputed_tokens or ledger.num_preemptions:
        rows.append(("computed again", f"{ledger.recomputed_tokens} tokens", _preemptions(ledger)))
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _prompt_tokens(ledger: Ledger) -> int:
    return ledger.cached_tokens + ledger.transferred_tokens + ledger.computed_tokens


def _sources(ledger: Ledger) -> str:
    return (
        f"{ledger.transferred_tokens} transferred, {ledger.cached_tokens} cached, "
        f"{ledger.computed_tokens} by the decode rank"
    )


def _speed(ledger: Ledger) -> str:
    if not ledger.decode_s:
        return ""
    return f"{ledger.output_tokens / ledger.decode_s:.1f} tokens/s"


def _sessions(ledger: Ledger) -> str:
    plural = "" if ledger.num_sessions == 1 else "s"
    return f"{ledger.bytes_expected:,} expected, {ledger.num_sessions} session{plural}"


def _preemptions(ledger: Ledger) -> str:
    plural = "" if ledger.num_preemptions == 1 else "s"
    return f"{ledger.num_preemptions} preemption{plural}"
