"""Keeping what was emitted apart from what lives in state.

A batch runs through one operator before the next one sees it. A state object that is emitted and
then changed by the next record of the same key must not change what was emitted: such objects are
copied when emitted, values that nobody can change are not.
"""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

_MUTABLE = (
    inspect.AnyType,
    inspect.ListType,
    inspect.SetType,
    inspect.DictType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.TypedDictType,
    inspect.DataclassType,
    inspect.CustomType,
    inspect.RawType,
)


def is_immutable(kind: Any) -> bool:
    """Whether no value of this type can be changed; False when that is not known."""
    try:
        return _fixed(inspect.type_info(kind), set())
    except TypeError:
        return False


def _fixed(info: inspect.Type, seen: set[Any]) -> bool:
    if isinstance(info, _MUTABLE):
        return False
    if isinstance(info, inspect.Metadata):
        return _fixed(info.type, seen)
    if isinstance(info, inspect.UnionType):
        return all(_fixed(part, seen) for part in info.types)
    if isinstance(info, inspect.TupleType):
        return all(_fixed(part, seen) for part in info.item_types)
    if isinstance(info, inspect.VarTupleType | inspect.FrozenSetType):
        return _fixed(info.item_type, seen)
    if isinstance(info, inspect.NamedTupleType):
        return all(_fixed(field.type, seen) for field in info.fields)
    if isinstance(info, inspect.StructType):
        if info.cls in seen:
            return True
        seen.add(info.cls)
        return bool(info.cls.__struct_config__.frozen) and _fields_fixed(info, seen)
    return True


def _fields_fixed(info: inspect.StructType, seen: set[Any]) -> bool:
    return all(_fixed(field.type, seen) for field in info.fields)


def copier(kind: type) -> Callable[[Any], Any] | None:
    """How to copy values of class ``kind``; None when they cannot change."""
    try:
        return _copiers[kind]
    except KeyError:
        found = _copiers[kind] = _copier(kind)
        return found


_copiers: dict[type, Callable[[Any], Any] | None] = {}


def _copier(kind: type) -> Callable[[Any], Any] | None:
    if is_immutable(kind) and kind is not tuple:
        return None
    if issubclass(kind, msgspec.Struct):
        info = inspect.type_info(kind)
        if isinstance(info, inspect.StructType) and _fields_fixed(info, {kind}):
            shallow: Callable[[Any], Any] = getattr(kind, "__copy__", copy.copy)
            return shallow
    return copy.deepcopy


def isolating(append: Callable[[Any], None]) -> Callable[[Any], None]:
    """``append`` that copies what could still change."""

    def emit(value: Any) -> None:
        copied = copier(type(value))
        append(value if copied is None else copied(value))

    return emit
