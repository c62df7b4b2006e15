"""Keys as people and queries write them have the bytes that the service hashed."""

import datetime as dt
import enum
import uuid
from typing import Any

import msgspec
import pytest
from penstock import ConfigurationError
from penstock.edge.routing import key_bytes
from penstock.schema import schema_of
from penstock_spark import keys

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"


class Account(msgspec.Struct, frozen=True):
    bank: str
    number: int


@pytest.mark.parametrize(
    ("kind", "literal", "key"),
    [
        (str, "ann", "ann"),
        (str, "7", "7"),
        (int, 7, 7),
        (float, 1.5, 1.5),
        (float, 2.0, 2),
        (bool, True, True),
        (bytes, b"\x00a", b"\x00a"),
        (uuid.UUID, str(ID), ID),
        (dt.date, dt.date(2026, 11, 20), dt.date(2026, 11, 20)),
        (Colour, "red", Colour.RED),
        (Any, "ann", "ann"),
        (Any, 7, 7),
        (tuple[str, ...], ["x", "y"], ("x", "y")),
    ],
)
def test_literals(kind: Any, literal: Any, key: Any) -> None:
    assert keys.of_literal(schema_of(kind), literal) == key_bytes(key)


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        (str, 7),
        (str, ["a"]),
        (int, "7"),
        (int, None),
        (Account, "x"),
        (tuple[str, int], "x"),
        (Any, b"\xa1x"),
        (Any, ["x"]),
    ],
)
def test_a_literal_that_is_no_key_says_nothing(kind: Any, literal: Any) -> None:
    assert keys.of_literal(schema_of(kind), literal) is None


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        (str, "ann", "ann"),
        (str, "7", "7"),
        (str, '"quoted"', '"quoted"'),
        (int, "7", 7),
        (uuid.UUID, str(ID), ID),
        (dt.date, "2026-11-20", dt.date(2026, 11, 20)),
        (Account, '{"bank": "b", "number": 1}', Account("b", 1)),
        (tuple[str, int], '["b", 1]', ("b", 1)),
    ],
)
def test_texts(kind: Any, text: str, key: Any) -> None:
    assert keys.of_text(schema_of(kind), text) == [key_bytes(key)]


def test_a_text_may_mean_two_keys_where_their_type_is_not_known() -> None:
    assert keys.of_text(schema_of(Any), "7") == [key_bytes("7"), key_bytes(7)]
    assert keys.of_text(schema_of(Any), "ann") == [key_bytes("ann")]


def test_a_text_that_is_no_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"key is 'ann'.*its keys are int"):
        keys.of_text(schema_of(int), "ann")
