"""Schemas: what they say of a type, the wire type they make, and the changes that they see."""

import enum
from datetime import date
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.schema import (
    ANY,
    MOST_DEPTH,
    Field,
    Schema,
    difference,
    flaw,
    key_difference,
    schema_of,
    shown,
    wire_type,
)

from tests.unit.savepoint.random_types import (
    TYPES,
    Closed,
    Color,
    Level,
    Line,
    Loose,
    Moved,
    Opened,
    Pair,
    Point,
    Sparse,
    Tree,
)


class Balance(msgspec.Struct):
    account: str
    total: int = 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (str | None, "str | None"),
        (None, "None"),
        (Any, "any"),
        (object(), "any"),
        (complex, "any"),
        (TypedDict("Quoted", {'a"b': int}), "any"),
        (bytearray, "bytes"),
        (Balance, "Balance(account: str, total: int = 0)"),
        (list[Balance | None], "list[Balance(account: str, total: int = 0) | None]"),
        (tuple[int, ...], "list[int]"),
        (tuple[int, str], "tuple[int, str]"),
        (frozenset[date], "set[date]"),
        (dict[str, list], "map[str, list[any]]"),
        (int | float | None, "int | float | None"),
        (int | Any, "any"),
        (Color, "Color('red', 'blue')"),
        (Level | None, "Level(1, 9) | None"),
        (Literal["a", 3] | None, "enum(3) | enum('a') | None"),
        (Pair, 'Pair(left: int, right: str = "r")'),
        (Loose, "Loose(name: str = ..., size: any = ...)"),
        (Moved, "Moved(toPlace: str, howFar: list[float] = [])"),
        (Tree, "Tree(value: int, children: list[any] = [], parent: any = ...)"),
    ],
)
def test_a_type_is_shown_as_it_is_on_the_wire(kind, text):
    assert shown(schema_of(kind)) == text


@settings(max_examples=150, deadline=None)
@given(TYPES)
def test_a_schema_is_json_without_a_flaw_and_reads_what_it_describes(kind):
    schema = schema_of(kind[0])
    assert msgspec.json.decode(msgspec.json.encode(schema), type=Schema) == schema
    assert flaw(schema) is None
    assert difference(schema, schema) is None
    assert hash(schema) == hash(schema_of(kind[0]))


@settings(max_examples=150, deadline=None)
@given(TYPES, st.data())
def test_the_wire_type_keeps_every_value(kind, data):
    value = data.draw(kind[1])
    encoded = msgspec.msgpack.encode(value)
    wire = msgspec.msgpack.decode(encoded, type=wire_type(schema_of(kind[0])))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(wire), type=kind[0])
    assert again == msgspec.msgpack.decode(encoded, type=kind[0])


def test_what_the_class_leaves_out_is_what_its_default_says():
    wire = wire_type(schema_of(Sparse))
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(Sparse()), type=wire)
    assert (found.key, found.value_key, found.numbers) == ("", None, {1: "one"})
    assert found.unset is msgspec.UNSET
    assert b"unset" not in msgspec.msgpack.encode(found)


def test_a_default_that_is_another_each_time_is_not_one():
    class Ticket(msgspec.Struct, omit_defaults=True):
        number: int = msgspec.field(default_factory=iter(range(100)).__next__)
        text: str = msgspec.field(default_factory=lambda: "".join([]))

    number, text = schema_of(Ticket).fields
    assert (number.required, number.default, number.may_be_absent) == (False, None, True)
    assert text.default == '""'


def test_required_fields_come_first_except_in_an_array():
    class Keyword(msgspec.Struct, kw_only=True):
        late: int = 0
        early: str

    class Array(Keyword, kw_only=True, array_like=True):
        pass

    assert [field.name for field in schema_of(Keyword).fields] == ["early", "late"]
    assert [field.name for field in schema_of(Array).fields] == ["late", "early"]
    data = msgspec.msgpack.encode(Array(late=1, early="x"))
    wire = msgspec.msgpack.decode(data, type=wire_type(schema_of(Array)))
    assert msgspec.msgpack.encode(wire) == data


def test_what_is_too_deep_is_any():
    kind: Any = int
    for _ in range(MOST_DEPTH + 5):
        kind = list[kind]
    schema = schema_of(kind)
    assert flaw(schema) is None
    assert shown(schema).count("list") == MOST_DEPTH
    assert "list[any]" in shown(schema)


def struct(*fields: tuple[Any, ...], **options: Any) -> Schema:
    return schema_of(msgspec.defstruct("S", fields, **options))


class Fewer(enum.Enum):
    RED = "red"


NESTED = struct(("list", list[dict[str, Balance]]))
REORDERED = struct(("b", str, ""), ("a", int, 0))

UNCHANGED = [
    (Balance, Balance),
    (Balance, Balance | None),
    (int, int | str),
    (int | str, int | str | None),
    (None, int | None),
    (Balance, Any),
    (Fewer, Color),
    (tuple[int, str], tuple[int, str | None]),
    (list[Balance], tuple[Balance, ...]),
    (Opened | Closed, Opened | Closed | Moved),
    (struct(("a", int)), struct(("a", int), ("b", str, "x"))),
    (struct(("a", int)), struct(("a", int | None), ("b", list, []))),
    (struct(("a", int, 0), ("b", str, "")), REORDERED),
    (struct(("a", int, 0)), struct(("a", int))),
    (struct(("a", int), array_like=True), struct(("a", int), ("b", int, 0), array_like=True)),
    (NESTED, struct(("list", list[dict[str, Balance | None]]), ("more", int, 0))),
]


def described(kind: Any) -> Schema:
    return kind if isinstance(kind, Schema) else schema_of(kind)


@pytest.mark.parametrize(("saved", "declared"), UNCHANGED)
def test_what_takes_more_reads_what_was_saved(saved, declared):
    assert difference(described(saved), described(declared)) is None


CHANGED = [
    (int, str, "it was int, is str"),
    (int, float, "it was int, is float"),
    (int | None, int, "it was int | None, is int"),
    (int | str, int, "it was int | str, is int"),
    (Any, int, "it was any, is int"),
    (Color, Fewer, "it has no member 'blue' any more"),
    (Color, str, "it was Color('red', 'blue'), is str"),
    (tuple[int, str], tuple[int, str, int], "it was tuple[int, str], is tuple[int, str, int]"),
    (tuple[int, str], tuple[int, int], "field '_2' was str, is int"),
    (dict[str, int], dict[int, int], "field 'keys' was str, is int"),
    (list[set[int]], list[set[str]], "field 'elements.elements' was int, is str"),
    (struct(("a", int), ("b", int)), struct(("a", int)), "field 'b' is gone"),
    (struct(("a", int)), struct(("a", int), ("b", int)), "field 'b' is new and has no default"),
    (struct(("a", int)), struct(("a", str)), "field 'a' was int, is str"),
    (struct(("a", int)), struct(("a", int), rename="upper"), "field 'a' is gone"),
    (struct(("a", int)), struct(("a", int), tag="x"), "it was tagged None=None, is type='x'"),
    (struct(("a", int)), struct(("a", int), array_like=True), "it was an object, is an array"),
    (
        struct(("a", int), ("b", str), array_like=True),
        struct(("b", str), ("a", int), array_like=True),
        "field 'a' was int, is str",
    ),
    (
        struct(("a", int), ("b", str), array_like=True),
        struct(("a", int), array_like=True),
        "field 'b' is gone",
    ),
    (
        struct(("a", int | msgspec.UnsetType, msgspec.UNSET)),
        struct(("a", int)),
        "field 'a' could be missing, and is required",
    ),
    (
        NESTED,
        struct(("list", list[dict[str, Point]])),
        "field 'list.elements.values.account' is gone",
    ),
]


@pytest.mark.parametrize(("saved", "declared", "sentence"), CHANGED)
def test_what_cannot_read_what_was_saved_is_told_with_the_field(saved, declared, sentence):
    assert difference(described(saved), described(declared)) == sentence


def test_keys_without_a_type_may_get_one():
    assert key_difference(ANY, Schema("str")) is None
    assert key_difference(Schema("str"), ANY) is None
    found = key_difference(Schema("str"), Schema("int"))
    assert found == "its keys changed: it was str, is int"


def test_a_renamed_class_or_attribute_is_no_change():
    saved = schema_of(msgspec.defstruct("Old", [("a", int)]))
    renamed = schema_of(msgspec.defstruct("New", [("other", int)], rename={"other": "a"}))
    assert difference(saved, renamed) is None


def nested(depth: int) -> Schema:
    schema = Schema("int")
    for _ in range(depth):
        schema = Schema("list", items=(schema,))
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (nested(MOST_DEPTH + 1), "nested more than 32 deep"),
        (Schema("list"), "a list has 0 items, expected 1"),
        (Schema("map", items=(ANY,)), "a map has 1 items, expected 2"),
        (Schema("int", items=(ANY,)), "a int has 1 items, expected 0"),
        (Schema("union", items=(ANY,)), "fewer than 2 members"),
        (Schema("int", fields=(Field("a", ANY),)), "has fields"),
        (Schema("struct", name="S", fields=(Field("a", ANY),) * 2), "'S' has a field twice"),
        (Schema("struct", fields=(Field("a", Schema("int"), False, "x"),)), "malformed"),
        (Schema("struct", fields=(Field("a", Schema("int"), False, '"x"'),)), "got `str`"),
        (Schema("union", items=(Schema("list", items=(ANY,)), Schema("set", items=(ANY,)))), "arr"),
        (Schema("struct", fields=(Field("a", ANY), Field("b", Schema("set")))), "0 items"),
        (Schema("struct", tag_field="a", tag="t", fields=(Field("a", ANY),)), "a"),
    ],
)
def test_a_schema_that_is_none_is_told(schema, reason):
    assert reason in (flaw(schema) or "")


def test_hostile_names_are_only_names():
    names = ["__class__", "__init__", "a b", "", "def", "x" * 5000, "é"]
    fields = tuple(Field(name, Schema("int")) for name in names)
    schema = Schema("struct", name="os.system('x')", fields=fields)
    assert flaw(schema) is None
    data = msgspec.msgpack.encode(dict(zip(names, range(7), strict=True)))
    wire = msgspec.msgpack.decode(data, type=wire_type(schema))
    assert msgspec.msgpack.encode(wire) == data


def test_lists_inside_a_key_are_tuples():
    schema = schema_of(tuple[Line, tuple[int, ...], frozenset[Any]])
    key = (Line(Point(1)), (1, 2), frozenset({"a"}))
    wire = msgspec.msgpack.decode(
        msgspec.msgpack.encode(key), type=wire_type(schema, hashable=True)
    )
    assert {wire: 1}[wire] == 1
    assert msgspec.msgpack.encode(wire) == msgspec.msgpack.encode(key)
