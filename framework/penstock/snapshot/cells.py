"""State of a subtask, not of a key: the elements of a list, or the entries of a map (L20)."""

from typing import Any, ClassVar

import msgspec

from penstock.failure import ConfigurationError


class ListCells:
    """The elements of an operator or union list state."""

    __slots__ = ("_decode", "_kind", "items", "name", "operator")

    everywhere: ClassVar[bool] = False
    """Whether every subtask holds the same."""

    def __init__(self, operator: str, name: str, kind: Any) -> None:
        self.operator = operator
        self.name = name
        self.items: list[Any] = []
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def encode(self) -> list[bytes]:
        """One msgpack value per element."""
        encode = msgspec.msgpack.encode
        return [encode(item) for item in self.items]

    def restore(self, elements: list[bytes]) -> None:
        """Replace the elements; raises ConfigurationError when they are not of the type."""
        try:
            self.items = [self._decode(element) for element in elements]
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"list state {self.name!r} of operator {self.operator!r} does not fit its declared "
                f"type {self._kind}: {error}; give the state its old type, or a new name"
            ) from error


class MapCells:
    """The entries of a broadcast state."""

    __slots__ = ("_decode", "_key", "_value", "entries", "name", "operator")

    everywhere: ClassVar[bool] = True

    def __init__(self, operator: str, name: str, key: Any, value: Any) -> None:
        self.operator = operator
        self.name = name
        self.entries: dict[Any, Any] = {}
        self._key = key
        self._value = value
        self._decode = msgspec.msgpack.Decoder(dict[key, value]).decode

    def encode(self) -> list[bytes]:
        """One msgpack map of one entry each."""
        encode = msgspec.msgpack.encode
        return [encode({key: value}) for key, value in self.entries.items()]

    def restore(self, elements: list[bytes]) -> None:
        """Replace the entries; raises ConfigurationError when they are not of the types."""
        try:
            self.entries = {}
            for element in elements:
                self.entries.update(self._decode(element))
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"broadcast state {self.name!r} of operator {self.operator!r} does not fit its "
                f"declared type {self._key} -> {self._value}: {error}; give the state its old "
                "types, or a new name"
            ) from error


Cells = ListCells | MapCells
