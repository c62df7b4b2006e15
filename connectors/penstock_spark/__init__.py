"""Penstock's savepoints and checkpoints in Spark.

The names are loaded when they are asked for: each Python worker of Spark imports this package, and
needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_spark.enabling import enable
    from penstock_spark.fast_lane import native
    from penstock_spark.s3a import s3a_jars, s3a_packages
    from penstock_spark.writing.bootstrap import KeyedStateBootstrap
    from penstock_spark.writing.describing import Place
    from penstock_spark.writing.writer import SavepointWriter

_HOMES = {
    "KeyedStateBootstrap": "writing.bootstrap",
    "Place": "writing.describing",
    "SavepointWriter": "writing.writer",
    "enable": "enabling",
    "native": "fast_lane",
    "s3a_jars": "s3a",
    "s3a_packages": "s3a",
}

__all__ = [
    "KeyedStateBootstrap",
    "Place",
    "SavepointWriter",
    "enable",
    "native",
    "s3a_jars",
    "s3a_packages",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
