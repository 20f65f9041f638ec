"""A transfer plan in words: what goes from whom to whom, and what merging saved.

Returns text; the command line prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.transfer.plan import TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSummary:
    """What one source rank sends to one destination rank, all layers together.

    Attributes:
        source: Source rank.
        target: Destination rank.
        heads: Model-wide KV heads sent.
        skipped_heads: Heads that both hold and that a replica of the source sends.
        num_atoms: Writes before merging: runs cut at every block border of either side.
        num_writes: Writes after merging.
        num_bytes: Bytes written.
        skipped_bytes: Bytes of ``skipped_heads``.
    """

    source: int
    target: int
    heads: tuple[int, ...]
    skipped_heads: tuple[int, ...]
    num_atoms: int
    num_writes: int
    num_bytes: int
    skipped_bytes: int


def summarize_plan(plan: TransferPlan) -> list[PairSummary]:
    """Return one summary per pair of ranks that share a head, in rank order."""
    head_bytes = 2 * int(plan.token_bytes.sum()) * (plan.stop - plan.start)
    summaries = []
    for source, layout in enumerate(plan.sources):
        for target, wanted in enumerate(plan.targets):
            shared = sorted(set(layout.heads) & set(wanted.heads))
            heads = plan.owners.get((source, target), [])
            if not shared:
                continue
            skipped = tuple(head for head in shared if head not in heads)
            sent = plan.all_layers(source, target).num_bytes
            summaries.append(
                PairSummary(
                    source=source,
                    target=target,
                    heads=tuple(heads),
                    skipped_heads=skipped,
                    num_atoms=2 * len(heads) * plan.spans.num_pieces * plan.num_layers,
                    num_writes=sent.size,
                    num_bytes=int(sent.sum()),
                    skipped_bytes=len(skipped) * head_bytes,
                )
            )
    return summaries


def explain_plan(plan: TransferPlan, *, link: str) -> str:
    """Return a table of a plan, with its proof.

    Args:
        plan: The plan; the same object that the engine runs.
        link: Transport that would carry it, e.g. ``shm``.

    Raises:
        TransferError: The proof failed.
    """
    plan.prove()
    pairs = summarize_plan(plan)
    header = ("source", "destination", "heads", "atoms", "writes", "bytes", "skipped", "link")
    rows = [_row(pair, link) for pair in pairs]
    total = (
        "all",
        "",
        "",
        f"{sum(pair.num_atoms for pair in pairs):,}",
        f"{sum(pair.num_writes for pair in pairs):,}",
        f"{sum(pair.num_bytes for pair in pairs):,}",
        f"{sum(pair.skipped_bytes for pair in pairs):,}",
        link,
    )
    return "\n".join([*_title(plan), "", *_table([header, *rows, total]), "", *_footer(plan)])


def _title(plan: TransferPlan) -> list[str]:
    tokens = plan.stop - plan.start
    return [
        f"Transfer plan: tokens [{plan.start}, {plan.stop}), {tokens:,} of them, "
        f"{plan.num_layers} layers",
        f"  from {len(plan.sources)} ranks with blocks of {plan.source.block_size} tokens "
        f"to {len(plan.targets)} with blocks of {plan.target.block_size}",
    ]


def _footer(plan: TransferPlan) -> list[str]:
    lines = [
        "atoms: runs of one head's K or V cut at every block border; writes: what is left after "
        "merging",
        "skipped: bytes that a replica of the head sends instead",
        "proof: every destination byte of the range is written once, from the right place, and "
        "no other",
    ]
    if plan.stop == plan.start:
        lines.insert(0, "nothing to send: the range is empty")
    return lines


def _row(pair: PairSummary, link: str) -> tuple[str, ...]:
    return (
        str(pair.source),
        str(pair.target),
        format_heads(pair.heads),
        f"{pair.num_atoms:,}",
        f"{pair.num_writes:,}",
        f"{pair.num_bytes:,}",
        f"{pair.skipped_bytes:,}",
        link,
    )


def format_heads(heads: tuple[int, ...]) -> str:
    """Return head indices as ranges.

    Example:
        >>> format_heads((0, 1, 2, 5))
        '0-2,5'
        >>> format_heads(())
        '-'
    """
    runs: list[list[int]] = []
    for head in heads:
        if runs and runs[-1][-1] == head - 1:
            runs[-1].append(head)
        else:
            runs.append([head])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join(texts) or "-"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]
