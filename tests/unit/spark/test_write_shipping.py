"""What a driver's file defines arrives whole in a process that does not have the file."""

import dataclasses
import enum
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
import pytest
from penstock import ConfigurationError
from penstock_spark.shipping import shipped


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    by: str = "nobody"


class Order(Mark, frozen=True, tag="order", rename="camel", omit_defaults=True):
    account_id: str
    parts: tuple[int, ...] = ()
    color: Color = Color.RED

    def total(self) -> int:
        return sum(self.parts) + OFFSET

    def __post_init__(self) -> None:
        assert self.account_id, "an order has an account"


class Fixed(msgspec.Struct, kw_only=True):
    optional: int = 1
    needed: int

    def __repr__(self) -> str:
        return f"fixed {super().__repr__()}"


class Seen(ps.KeyedProcess):
    orders = ps.ValueState(Order)

    def process(self, order: Order, ctx: ps.Context) -> None:
        self.orders.set(order)


class Tree(msgspec.Struct):
    children: "list[Tree]" = []


OFFSET = 5


def elsewhere(value: Any, expression: str) -> str:
    """What ``expression`` is, with ``it`` landed in a new process far from this file."""
    code = f"""
import sys, msgspec
from penstock_spark.shipping import landed
it = landed(sys.stdin.buffer.read())
print({expression})
"""
    found = subprocess.run(
        [sys.executable, "-c", code], input=shipped(value), capture_output=True, cwd="/", check=True
    )
    return found.stdout.decode().strip()


@pytest.mark.parametrize(
    ("value", "expression", "expected"),
    [
        (Order, "it('a', (1, 2), by='me').total()", "8"),
        (Order, "msgspec.json.encode(it('a'))", """b'{"type":"order","accountId":"a"}'"""),
        (Order, """msgspec.json.decode(b'{"type":"order","accountId":"z"}', type=it).by""",
         "nobody"),
        (Order, "(it.__struct_fields__, it.__match_args__)",
         f"{(Order.__struct_fields__, Order.__match_args__)}"),
        (Order, "(hash(it('a')) == hash(it('a')), it.__mro__[-4].__name__)", "(True, 'Mark')"),
        (Fixed, "it(needed=2)", repr(Fixed(needed=2))),
        (Seen, "it.__states__['orders'].stored('b').account_id", "b"),
        (msgspec.json.Decoder(Order, strict=False).decode,
         """it(b'{"type":"order","accountId":"z"}').account_id""", "z"),
        (msgspec.msgpack.Encoder(order="sorted"), "it.encode({'b': 1, 'a': 2})[1:3]", "b'\\xa1a'"),
        (lambda: Order("x").color is Color.RED, "it()", "True"),
    ],
)  # fmt: skip
def test_it_is_what_it_was(value: Any, expression: str, expected: str) -> None:
    assert elsewhere(value, expression) == expected


def test_what_msgspec_remembers_of_a_class_stays_here() -> None:
    assert msgspec.json.decode(b'"red"', type=Color) is Color.RED
    assert msgspec.json.decode(b'{"x": 1}', type=Point) == Point(1)
    assert elsewhere(Color, """msgspec.json.decode(b'"red"', type=it) is it.RED""") == "True"
    assert elsewhere(Point, """msgspec.json.decode(b'{"x": 1}', type=it).x""") == "1"
    assert msgspec.json.decode(b'"red"', type=Color) is Color.RED


def test_checks_of_a_struct_run_there_too() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elsewhere(Order, "it('')")
    assert b"an order has an account" in caught.value.stderr


def test_installed_code_travels_by_name() -> None:
    assert len(shipped(msgspec.json.decode)) < 100
    assert len(shipped(ps.KeyedProcess)) < 100


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="struct Tree contains itself"):
        shipped(Tree)
    with (
        (tmp_path / "x").open("w") as file,
        pytest.raises(ConfigurationError, match=r"TextIOWrapper.*cannot be sent to Spark"),
    ):
        shipped({"file": file})
