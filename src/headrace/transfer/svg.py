"""A transfer plan as a picture: source ranks left, destination ranks right, heads coloured.

The upper part shows which rank sends which head; the lower part shows how the tokens of one head
move between blocks. Returns a standalone SVG that reads on light and on dark pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from headrace.core.layouts import CacheLayout
from headrace.transfer.plan import TransferPlan
from headrace.transfer.spans import BlockRun

WIDTH = 960
LEFT, RIGHT, BOX = 40, 700, 220
ROW, GAP, TOP = 22, 18, 92
# More spans than this are not drawn: lines would cover each other.
MAX_SPANS = 96
STRIP = 26
STRIP_GAP = 130

_STYLE = """
svg { font: 13px system-ui, sans-serif; background: Canvas; color-scheme: light dark; }
text { fill: CanvasText; } .dim { opacity: .6; font-size: 11px; } .big { font-size: 17px; }
.box { fill: none; stroke: CanvasText; stroke-opacity: .45; }
.head { fill-opacity: .8; } .spare { fill-opacity: .12; stroke-dasharray: 3 3; }
.link { fill: none; stroke-width: 3; stroke-opacity: .7; }
.span { fill-opacity: .35; stroke-opacity: .6; }
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """Where one head of one rank is drawn: the middle of its bar."""

    y: float
    is_used: bool


def draw_plan(plan: TransferPlan, *, link: str) -> str:
    """Return the SVG of a plan.

    Args:
        plan: The plan; the same object that the engine runs.
        link: Transport that would carry it, e.g. ``shm``.
    """
    sources, source_end = _place(plan.sources, _sent(plan, side=0))
    targets, target_end = _place(plan.targets, _sent(plan, side=1))
    strips_top = max(source_end, target_end) + 50
    height = strips_top + 2 * STRIP + STRIP_GAP + 60
    body = [
        *_heading(plan, link),
        *_links(plan, sources, targets),
        *_ranks(plan.sources, sources, x=LEFT, name="source"),
        *_ranks(plan.targets, targets, x=RIGHT, name="destination"),
        *_strips(plan, strips_top),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" role="img"><title>{escape(_caption(plan))}</title>'
        f"<style>{_STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _caption(plan: TransferPlan) -> str:
    return (
        f"KV transfer of tokens [{plan.start}, {plan.stop}), {plan.num_layers} layers: "
        f"{len(plan.sources)} source ranks to {len(plan.targets)}"
    )


def _heading(plan: TransferPlan, link: str) -> list[str]:
    num_bytes = sum(int(plan.all_layers(*pair).num_bytes.sum()) for pair in plan.owners)
    num_writes = sum(plan.all_layers(*pair).num_bytes.size for pair in plan.owners)
    return [
        _text(LEFT, 34, _caption(plan), kind="big"),
        _text(
            LEFT,
            56,
            f"{num_bytes:,} bytes in {num_writes:,} writes over {link}; a dashed head is a "
            f"replica that another rank sends",
            kind="dim",
        ),
    ]


def _sent(plan: TransferPlan, *, side: int) -> dict[int, set[int]]:
    """Heads that take part, by rank of one side (0: sources, 1: destinations)."""
    ranks: dict[int, set[int]] = {}
    for pair, heads in plan.owners.items():
        ranks.setdefault(pair[side], set()).update(heads)
    return ranks


def _place(
    layouts: tuple[CacheLayout, ...], used: dict[int, set[int]]
) -> tuple[dict[tuple[int, int], _Row], float]:
    """Return the row of each (rank, head), and where the column ends."""
    rows: dict[tuple[int, int], _Row] = {}
    y = float(TOP)
    for rank, layout in enumerate(layouts):
        y += ROW
        for head in layout.heads:
            rows[rank, head] = _Row(y + ROW / 2, head in used.get(rank, ()))
            y += ROW
        y += GAP
    return rows, y


def _ranks(
    layouts: tuple[CacheLayout, ...], rows: dict[tuple[int, int], _Row], *, x: int, name: str
) -> list[str]:
    parts = []
    for rank, layout in enumerate(layouts):
        top = rows[rank, layout.first_head].y - ROW / 2
        label = f"{name} rank {rank}: blocks of {layout.block_size}, {layout.num_blocks} of them"
        parts.append(_text(x, top - 6, label, kind="dim"))
        parts.append(_rect(x, top, BOX, height=ROW * layout.num_heads, kind="box"))
        for head in layout.heads:
            row = rows[rank, head]
            color = _color(head, layout)
            kind = "head" if row.is_used else "spare"
            parts.append(
                f'<rect class="{kind}" x="{x + 3}" y="{row.y - 8:.1f}" width="{BOX - 6}" '
                f'height="16" rx="3" fill="{color}" stroke="{color}"/>'
            )
            parts.append(_text(x + 10, row.y + 4, f"head {head}"))
    return parts


def _links(
    plan: TransferPlan,
    sources: dict[tuple[int, int], _Row],
    targets: dict[tuple[int, int], _Row],
) -> list[str]:
    parts = []
    for (source, target), heads in plan.owners.items():
        for head in heads:
            start, end = sources[source, head].y, targets[target, head].y
            middle = (LEFT + BOX + RIGHT) / 2
            parts.append(
                f'<path class="link" stroke="{_color(head, plan.targets[target])}" '
                f'd="M{LEFT + BOX} {start:.1f} C{middle} {start:.1f} {middle} {end:.1f} '
                f'{RIGHT} {end:.1f}"><title>head {head}: source rank {source} to destination '
                f"rank {target}</title></path>"
            )
    return parts


def _strips(plan: TransferPlan, top: float) -> list[str]:
    """Draw the blocks of one head in the order of their ids, and the spans between them."""
    bottom = top + STRIP + STRIP_GAP
    source = _Strip(plan, plan.source, y=top)
    target = _Strip(plan, plan.target, y=bottom)
    spans = plan.spans
    drawn = min(len(spans.num_tokens), MAX_SPANS)
    more = len(spans.num_tokens) - drawn
    title = f"one head, K or V, of one layer: {len(spans.num_tokens)} spans"
    parts = [
        _text(LEFT, top - 14, title + (f", {more} not drawn" if more else ""), kind="dim"),
        *source.blocks("source"),
        *target.blocks("destination"),
    ]
    for index in range(drawn):
        a, b, n = (
            int(column[index])
            for column in (spans.source_slots, spans.target_slots, spans.num_tokens)
        )
        (a0, a1), (b0, b1) = source.extent(a, n), target.extent(b, n)
        color = f"hsl({index * 137 % 360} 60% 50%)"
        parts.append(
            f'<path class="span" fill="{color}" stroke="{color}" d="M{a0:.1f} {top + STRIP:.1f} '
            f'L{a1:.1f} {top + STRIP:.1f} L{b1:.1f} {bottom:.1f} L{b0:.1f} {bottom:.1f} Z">'
            f"<title>{n} tokens, slot {a} to slot {b}</title></path>"
        )
    return parts


class _Strip:
    """The blocks of one side that hold the range, side by side in the order of their ids."""

    def __init__(self, plan: TransferPlan, run: BlockRun, *, y: float) -> None:
        size = run.block_size
        first, stop = plan.start // size, -(-plan.stop // size)
        self.size = size
        self.y = y
        self.ids = sorted(run.blocks[first:stop].tolist()) if plan.stop > plan.start else []
        self.place = {block: index for index, block in enumerate(self.ids)}
        self.width = (WIDTH - 2 * LEFT) / max(len(self.ids), 1)

    def blocks(self, name: str) -> list[str]:
        """Return a box per block, with its id where there is room."""
        parts = [_text(WIDTH - LEFT - 130, self.y - 6, f"{name} block ids", kind="dim")]
        for index, block in enumerate(self.ids):
            x = LEFT + index * self.width
            parts.append(_rect(x, self.y, self.width, height=STRIP, kind="box"))
            if self.width >= 9 * len(str(block)):
                parts.append(_text(x + 4, self.y + 17, str(block)))
        return parts

    def extent(self, slot: int, num_tokens: int) -> tuple[float, float]:
        """Return where a run of slots begins and ends; its blocks are neighbours here."""
        block, within = divmod(slot, self.size)
        x = LEFT + (self.place[block] + within / self.size) * self.width
        return x, x + num_tokens / self.size * self.width


def _color(head: int, layout: CacheLayout) -> str:
    heads = layout.layers[0].num_kv_heads if layout.layers else 1
    return f"hsl({round(360 * head / heads)} 65% 50%)"


def _rect(x: float, y: float, width: float, *, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="3"/>'
    )


def _text(x: float, y: float, text: str, *, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
