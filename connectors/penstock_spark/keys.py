"""A key as a person or a query writes it, and its canonical bytes, which decide its key group."""

import contextlib
from typing import Any

import msgspec
from penstock.edge.routing import UnusableKey, key_bytes
from penstock.failure import ConfigurationError
from penstock.schema import Schema, shown, wire_type


def of_literal(schema: Schema, value: Any) -> bytes | None:
    """The canonical bytes of a literal that a query compares ``key_value`` with.

    None when no key can be written so: then nothing is known about the rows.
    """
    if schema.kind == "any" and not isinstance(value, str | int):
        return None  # such keys are shown as the bytes of their msgpack
    try:
        return key_bytes(msgspec.convert(value, wire_type(schema, hashable=True)))
    except (msgspec.ValidationError, UnusableKey):
        return None


def of_text(schema: Schema, text: str) -> list[bytes]:
    """The canonical bytes of the option ``key``: text for a str, JSON for anything else.

    Two where the type of the keys is not known: the text, and what it says as JSON. Raises
    ConfigurationError when the text is no such key.
    """
    kind = wire_type(schema, hashable=True)
    found = []
    with contextlib.suppress(msgspec.ValidationError, UnusableKey):
        found.append(key_bytes(msgspec.convert(text, kind)))
    if found and schema.kind != "any":
        return found
    try:
        found.append(key_bytes(msgspec.json.decode(text, type=kind)))
    except (msgspec.MsgspecError, UnusableKey) as error:
        if not found:
            raise _unusable(schema, text, str(error)) from None
    return found


def _unusable(schema: Schema, text: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"option key is {text!r:.200}, which is no key of this state: its keys are "
        f"{shown(schema)}, written as they are when they are text and as JSON otherwise ({reason})"
    )
