import xml.etree.ElementTree as ET

from headrace.transfer.plan import TransferPlan, plan_transfer
from headrace.transfer.svg import MAX_SPANS, WIDTH, draw_plan
from tests.support.transfer_layouts import split_layouts

SVG = "{http://www.w3.org/2000/svg}"


def make_plan(num_blocks: int = 5, start: int = 10, stop: int = 70) -> TransferPlan:
    return plan_transfer(
        sources=split_layouts(8, num_blocks=300),
        targets=split_layouts(2, block_size=32, num_blocks=300),
        source_blocks=[2 * n for n in range(num_blocks)],
        target_blocks=[n * 3 for n in range(num_blocks)],
        start=start,
        stop=stop,
        seed=2,
    )


def parse(plan: TransferPlan) -> ET.Element:
    return ET.fromstring(draw_plan(plan, link="shm <1>"))


def count(root: ET.Element, tag: str, kind: str) -> int:
    return sum(1 for one in root.iter(SVG + tag) if one.get("class") == kind)


def test_every_head_of_every_rank_is_drawn_and_replicas_are_set_apart() -> None:
    root = parse(make_plan())
    assert count(root, "rect", "head") == 4 + 4
    assert count(root, "rect", "spare") == 4


def test_there_is_one_link_per_head_that_is_sent() -> None:
    plan = make_plan()
    links = [one for one in parse(plan).iter(SVG + "path") if one.get("class") == "link"]
    titles = {one.findtext(SVG + "title") for one in links}
    assert titles == {
        f"head {head}: source rank {s} to destination rank {t}"
        for (s, t), heads in plan.owners.items()
        for head in heads
    }


def test_spans_are_drawn_up_to_a_limit_that_is_told() -> None:
    few = make_plan()
    assert count(parse(few), "path", "span") == len(few.spans.num_tokens)
    many = make_plan(num_blocks=120, start=0, stop=1900)
    assert len(many.spans.num_tokens) > MAX_SPANS
    root = parse(many)
    assert count(root, "path", "span") == MAX_SPANS
    left = len(many.spans.num_tokens) - MAX_SPANS
    assert any(f"{left} not drawn" in (text.text or "") for text in root.iter(SVG + "text"))


def test_nothing_leaves_the_picture() -> None:
    root = parse(make_plan(num_blocks=120, start=0, stop=1900))
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    assert width == WIDTH
    for box in root.iter(SVG + "rect"):
        x, y = float(box.attrib["x"]), float(box.attrib["y"])
        assert x >= 0
        assert x + float(box.attrib["width"]) <= width + 0.2
        assert y + float(box.attrib["height"]) <= height


def test_an_empty_plan_is_a_picture_too() -> None:
    assert count(parse(make_plan(start=10, stop=10)), "path", "span") == 0


def test_it_reads_on_light_and_dark_pages() -> None:
    text = draw_plan(make_plan(), link="shm")
    assert "color-scheme: light dark" in text
    assert "CanvasText" in text
