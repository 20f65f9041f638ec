"""Nobody starts who would starve the running, and nobody is overtaken or left to wait for ever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import RequestError
from headrace.scheduler.admission import Limits, Room, Waiting, admit, check_fits

ROOM = Room(free_blocks=10, num_pinned=0, max_pinned=5, num_sequences=0, max_sequences=8)
LIMITS = Limits(max_model_tokens=100, num_blocks=10, block_size=4, max_sequences=8)


def test_requests_start_in_arrival_order_while_blocks_last():
    line = [Waiting(waiting_id=name, num_blocks=4) for name in "abc"]
    assert admit(line, ROOM) == ("a", "b")


def test_preempted_sequences_start_before_new_requests():
    line = [
        Waiting(waiting_id="new", num_blocks=4),
        Waiting(waiting_id="back", num_blocks=4, is_resumed=True),
        Waiting(waiting_id="back too", num_blocks=1, is_resumed=True),
    ]
    assert admit(line, ROOM) == ("back", "back too")


def test_a_small_request_does_not_overtake_a_large_one():
    line = [Waiting(waiting_id="large", num_blocks=11), Waiting(waiting_id="small", num_blocks=1)]
    assert admit(line, ROOM) == ()


def test_one_block_of_growth_is_kept_for_every_sequence_that_holds_blocks():
    room = replace(ROOM, num_sequences=3)
    assert admit([Waiting(waiting_id="a", num_blocks=6)], room) == ("a",)
    assert admit([Waiting(waiting_id="a", num_blocks=7)], room) == ()


def test_a_lone_request_may_fill_the_pool():
    assert admit([Waiting(waiting_id="a", num_blocks=10)], ROOM) == ("a",)


def test_choices_count_as_sequences_and_need_their_growth():
    twins = Waiting(waiting_id="a", num_blocks=5, num_sequences=4)
    assert admit([twins], replace(ROOM, num_sequences=1)) == ("a",)
    assert admit([twins], replace(ROOM, num_sequences=2)) == ()
    assert admit([twins], replace(ROOM, max_sequences=3)) == ()


def test_pinned_blocks_are_capped():
    line = [Waiting(waiting_id=name, num_blocks=2, num_pinned_blocks=2) for name in "abc"]
    assert admit(line, replace(ROOM, num_pinned=1)) == ("a", "b")
    local = Waiting(waiting_id="local", num_blocks=2)
    assert admit([local], replace(ROOM, num_pinned=5)) == ("local",)


def test_a_prompt_larger_than_the_pinned_cap_waits_for_its_kv_alone():
    large = Waiting(waiting_id="large", num_blocks=6, num_pinned_blocks=6)
    assert admit([large, replace(large, waiting_id="next", num_blocks=1)], ROOM) == ("large",)
    assert admit([large], replace(ROOM, num_pinned=1)) == ()


@st.composite
def lines(draw: st.DrawFn) -> list[Waiting]:
    line = []
    for place in range(draw(st.integers(0, 6))):
        blocks = draw(st.integers(0, 8))
        line.append(
            Waiting(
                waiting_id=str(place),
                num_blocks=blocks,
                num_pinned_blocks=draw(st.sampled_from([0, blocks])),
                num_sequences=draw(st.integers(1, 3)),
                is_resumed=draw(st.booleans()),
            )
        )
    return line


rooms = st.builds(
    Room,
    free_blocks=st.integers(0, 20),
    num_pinned=st.integers(0, 6),
    max_pinned=st.integers(1, 8),
    num_sequences=st.integers(0, 6),
    max_sequences=st.integers(1, 8),
)


@given(line=lines(), room=rooms)
def test_whoever_starts_fits_what_is_left(line: list[Waiting], room: Room):
    started = [each for each in line if each.waiting_id in admit(line, room)]
    num_sequences = sum(each.num_sequences for each in started)
    free = room.free_blocks - sum(each.num_blocks for each in started)
    assert free >= 0
    if started:
        assert room.num_sequences + num_sequences <= room.max_sequences
        if room.num_sequences or len(started) > 1:
            assert free >= room.num_sequences + num_sequences


@given(line=lines(), room=rooms)
def test_pinned_blocks_exceed_the_cap_only_for_one_request_alone(line: list[Waiting], room: Room):
    pinned = [
        each.num_pinned_blocks
        for each in line
        if each.waiting_id in admit(line, room) and each.num_pinned_blocks
    ]
    alone = not room.num_pinned and len(pinned) == 1
    assert alone or not pinned or room.num_pinned + sum(pinned) <= room.max_pinned


@given(line=lines(), room=rooms)
def test_the_started_are_the_head_of_the_line(line: list[Waiting], room: Room):
    resumed = [each.waiting_id for each in line if each.is_resumed]
    fresh = [each.waiting_id for each in line if not each.is_resumed]
    started = admit(line, room)
    assert list(started) == (resumed + fresh)[: len(started)]


@given(line=lines(), room=rooms)
def test_an_empty_rank_always_starts_the_first_that_fits_it(line: list[Waiting], room: Room):
    room = replace(room, num_pinned=0, num_sequences=0)
    first = next((each for each in line if each.is_resumed), line[0] if line else None)
    if first and first.num_blocks <= room.free_blocks and first.num_sequences <= room.max_sequences:
        assert admit(line, room)[0] == first.waiting_id


def test_what_fits_exactly_is_not_refused():
    check_fits(30, max_tokens=11, num_choices=8, limits=LIMITS)
    check_fits(99, max_tokens=1, num_choices=1, limits=replace(LIMITS, num_blocks=25))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param", "message"),
    [
        (100, 1, "prompt", "context is 100 tokens, but 101"),
        (60, 41, "max_tokens", "context is 100 tokens, but 101"),
        (30, 12, "max_tokens", "holds 40 tokens, but prompt and output need 41"),
        (41, 1, "prompt", "holds 40 tokens, but prompt and output need 41"),
    ],
)
def test_a_request_that_can_never_finish_is_refused_by_name(
    prompt: int, max_tokens: int, param: str, message: str
):
    with pytest.raises(RequestError, match=message) as caught:
        check_fits(prompt, max_tokens=max_tokens, num_choices=1, limits=LIMITS)
    assert (caught.value.param, caught.value.status) == (param, 400)
    assert caught.value.code == "context_length_exceeded"


def test_more_choices_than_a_rank_decodes_are_refused():
    with pytest.raises(RequestError, match="n=9") as caught:
        check_fits(1, max_tokens=1, num_choices=9, limits=LIMITS)
    assert caught.value.param == "n"
