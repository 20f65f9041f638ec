"""Messages that authenticate and yet are wrong: of any type, or real ones with one thing spoilt."""

from __future__ import annotations

import copy
import types
import typing
from enum import Enum
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

from headrace.core.codec import Codec
from headrace.core.errors import ProtocolError
from headrace.core.messages import AnyMessage, Message

KEY = b"a key of a test deployment"
MAX_UINT64 = 2**64 - 1
INTS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, MAX_UINT64, -(2**63)]),
)
FLOATS = st.one_of(
    st.floats(-10, 10), st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e300])
)
TEXTS = st.one_of(
    st.sampled_from(["", "edge", "decode", "prefill", "prefill0", "fake", "\0", "../x", "x" * 300]),
    st.text(max_size=8),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return plain values that a field of this type lets in, sensible or not."""
    simple = {
        int: INTS,
        float: FLOATS,
        str: TEXTS,
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
        type(None): st.none(),
    }
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return plain(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from([one.value for one in hint])
    return _values_of_generic(typing.get_origin(hint), typing.get_args(hint))


def _values_of_generic(origin: Any, args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if origin is types.UnionType:
        return st.one_of(*map(values_of, args))
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if origin is tuple and Ellipsis not in args:
        return st.tuples(*map(values_of, args)).map(list)
    return st.lists(values_of(args[0]), max_size=4)


def plain(kind: type[Struct]) -> st.SearchStrategy[Any]:
    """Return plain data that decodes as ``kind``, but for checks of its own."""
    config = kind.__struct_config__
    hints = typing.get_type_hints(kind)
    fields = {name: st.deferred(lambda n=name: values_of(hints[n])) for name in hints}
    fields = {name: fields[name] for name in kind.__struct_fields__}
    if config.array_like:
        return st.tuples(*fields.values()).map(list)
    if config.tag is not None:
        fields["type"] = st.just(config.tag)
    return st.fixed_dictionaries(fields)


def spoilt(message: Message) -> st.SearchStrategy[Any]:
    """Return plain data of a real message with one to three of its values made strange."""
    data = msgspec.to_builtins(message)
    by_field: dict[Any, list[Any]] = {}
    for way, value in _paths(data):
        by_field.setdefault(way[0], []).append((way, value))
    # By field first, or a nested value would drown all others.
    changes = (
        st.sampled_from(sorted(by_field))
        .flatmap(lambda name: st.sampled_from(by_field[name]))
        .flatmap(lambda found: st.tuples(st.just(found[0]), _like(found[1])))
    )
    return st.lists(changes, min_size=1, max_size=3).map(lambda chosen: _changed(data, chosen))


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Return values of the type of this one, so that decoding alone seldom refuses them."""
    kinds = {bool: st.booleans(), int: INTS, float: FLOATS, str: TEXTS}
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, list):
        return st.lists(_like(value[0]) if value else INTS, max_size=4)
    return st.one_of(INTS, FLOATS, TEXTS, st.none(), st.just({}))


def _paths(data: Any) -> typing.Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield where each value lies, and it; of a list of numbers the ends stand for all."""
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = [item for item in data.items() if item[0] != "type"]
    elif isinstance(data, list):
        items = [(index, data[index]) for index in sorted({0, len(data) - 1}) if data]
    for key, value in items:
        yield (key,), value
        yield from (((key, *rest), found) for rest, found in _paths(value))


def _changed(data: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    data = copy.deepcopy(data)
    for (*way, last), value in changes:
        place = data
        try:
            for key in way:
                place = place[key]
            place[last] = value
        except (KeyError, IndexError, TypeError):
            # An earlier change took away what this one was to change.
            continue
    return data


def received(data: Any) -> AnyMessage | None:
    """Return what a rank gets when somebody with the key sends this; None if it is dropped."""
    codec = Codec(KEY)
    frame = codec.encode(typing.cast("Message", data))
    try:
        return codec.decode(frame)
    except ProtocolError:
        return None
