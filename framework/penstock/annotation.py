"""What a user's functions and classes say about the types that they give."""

import typing
from typing import Any, TypeVar

from penstock.failure import ConfigurationError


def returned_type(f: Any) -> Any:
    """The annotated return type of a function; Any when there is none."""
    try:
        found = typing.get_type_hints(f).get("return", Any)
    except (TypeError, NameError, AttributeError):
        return Any
    return Any if isinstance(found, TypeVar) else found


def element_type(kind: Any) -> Any:
    """The element type of an iterable type; Any when it names none."""
    arguments = typing.get_args(kind)
    return arguments[0] if arguments else Any


def owner_class(uid: str, process: Any, wanted: type) -> type:
    """The class of the process that ``process`` makes; ConfigurationError when it makes none."""
    if isinstance(process, wanted):
        raise ConfigurationError(
            f"step {uid!r}: {type(process).__name__}(...) is one instance, but every subtask "
            "needs its "
            "own; pass the class, or a function that makes one: lambda: "
            f"{type(process).__name__}(...)"
        )
    if isinstance(process, type) and issubclass(process, wanted):
        return process
    made = process() if callable(process) else process
    if not isinstance(made, wanted):
        raise ConfigurationError(
            f"step {uid!r}: expected a class derived from ps.Process or ps.KeyedProcess, or a "
            "function "
            f"that makes an instance, found {made!r:.100}"
        )
    return type(made)
