"""Bytes to typed values and back, a whole batch per call, by msgspec (L21: no pickle)."""

from collections.abc import Callable
from operator import length_hint
from typing import Any, Literal

import msgspec

from penstock.failure import ConfigurationError
from penstock.record import OperatorFailed, described

Format = Literal["json", "msgpack", "string", "bytes"]
_SHOWN_BYTES = 120


def type_name(kind: Any) -> str:
    """A type as shown to people, and compared between two ends of an edge."""
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, type) and not getattr(kind, "__args__", None):
        return kind.__name__
    text = str(kind)
    for module in ("typing.", "builtins."):
        text = text.replace(module, "")
    # Struct arguments show with their module; the short name is what both ends have in common.
    return _without_modules(text)


def _without_modules(text: str) -> str:
    parts: list[str] = []
    word = ""
    for char in text + "\0":
        if char.isidentifier() or char.isdigit() or char == ".":
            word += char
            continue
        parts.append(word.rpartition(".")[2])
        parts.append(char)
        word = ""
    return "".join(parts)[:-1]


class Serde:
    """How one source or sink reads and writes values of one type.

    Args:
        uid: the step that the serde works for, named in errors.
        kind: the values' type; any type that msgspec knows.
        form: json, msgpack, string or bytes.
    """

    def __init__(self, uid: str, kind: Any, form: str) -> None:
        self._uid = uid
        self._kind = kind
        self._form = form
        wanted = {"string": str, "bytes": bytes}.get(form)
        if wanted is not None and kind not in (wanted, Any):
            raise ConfigurationError(
                f"step {uid!r}: serde {form!r} gives {wanted.__name__}, not {type_name(kind)}; "
                f"use value={wanted.__name__}, or serde 'json' or 'msgpack'"
            )
        self._decode: Callable[[Any], Any]
        self._encode: Callable[[Any], bytes]
        try:
            match form:
                case "json":
                    self._decode = msgspec.json.Decoder(kind).decode
                    self._encode = msgspec.json.Encoder().encode
                case "msgpack":
                    self._decode = msgspec.msgpack.Decoder(kind).decode
                    self._encode = msgspec.msgpack.Encoder().encode
                case "string":
                    self._decode = bytes.decode
                    self._encode = str.encode
                case "bytes":
                    self._decode = _checked_bytes
                    self._encode = _checked_bytes
                case _:
                    raise ConfigurationError(
                        f"step {uid!r}: unknown serde {form!r}; use 'json', 'msgpack', 'string' or "
                        "'bytes'"
                    )
        except TypeError as error:
            raise ConfigurationError(
                f"step {uid!r}: {type_name(kind)} is no type that msgspec can read: {error}; use a "
                "msgspec.Struct, a dataclass or builtin types"
            ) from error

    def decode_all(self, raws: list[Any]) -> list[Any]:
        """The values of ``raws``. Raises OperatorFailed with the index of the wrong record."""
        left = iter(raws)
        try:
            return list(map(self._decode, left))
        except Exception as error:
            index = len(raws) - length_hint(left) - 1
            raw = raws[index]
            if raw is None and self._takes_none():
                return [None if raw is None else self._decode(raw) for raw in raws]
            raise OperatorFailed(self._uid, index, self._wrong(raw, error)) from error

    def encode_all(self, values: list[Any]) -> list[Any]:
        """The bytes of ``values``. Raises OperatorFailed with the index of the wrong one."""
        left = iter(values)
        try:
            return list(map(self._encode, left))
        except Exception as error:
            index = len(values) - length_hint(left) - 1
            raise OperatorFailed(
                self._uid,
                index,
                f"cannot write {values[index]!r:.200} with serde {self._form!r}: "
                f"{described(error)}; "
                "emit values of a type that the serde writes, or choose another serde=",
            ) from error

    def _takes_none(self) -> bool:
        try:
            msgspec.convert(None, self._kind)
        except msgspec.ValidationError:
            return False
        return True

    def _wrong(self, raw: Any, error: Exception) -> str:
        if raw is None:
            return (
                f"expected {type_name(self._kind)} ({self._form}), found a record without value (a "
                f"tombstone); declare value={type_name(self._kind)} | None and handle None"
            )
        shown = bytes(raw[:_SHOWN_BYTES])
        more = f" ... {len(raw)} bytes in all" if len(raw) > _SHOWN_BYTES else ""
        return (
            f"expected {type_name(self._kind)} ({self._form}), found {shown!r}{more}: {error}; "
            "check "
            "the topic's producer, or give the source the type and serde that the topic has"
        )


def _checked_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"expected bytes, found {type(value).__name__}")
    return value


_encode_json = msgspec.json.Encoder().encode


def encode_keys(uid: str, keys: list[Any]) -> list[bytes | None]:
    """Record keys as Kafka has them: str as UTF-8, bytes as they are, the rest as JSON."""
    try:
        return list(map(str.encode, keys))
    except TypeError:
        pass
    encoded: list[bytes | None] = []
    for index, key in enumerate(keys):
        try:
            if key is None or type(key) is bytes:
                encoded.append(key)
            elif isinstance(key, str):
                encoded.append(key.encode())
            else:
                encoded.append(_encode_json(key))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise OperatorFailed(
                uid, index, f"cannot write the key {key!r:.200}: {described(error)}"
            ) from error
    return encoded
