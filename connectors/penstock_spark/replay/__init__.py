"""Replay: the history of topics becomes the state that a service would have by now.

The names are loaded when they are asked for: Python workers of Spark need only the tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_spark.replay.result import Replayed, replayed

__all__ = ["Replayed", "replayed"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.result"), name)
