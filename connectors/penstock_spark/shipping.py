"""A user's classes and functions on their way to Spark's workers, whatever file they stand in.

Workers import installed packages. What a notebook, a script or a file beside it defines travels
with the task instead, by cloudpickle, which knows neither the fields of a `msgspec.Struct` nor
that such a file cannot be imported elsewhere. Only code that the driver holds is shipped: state
never is (L21).
"""

import contextlib
import io
import os
import pickle  # from our own driver to our own tasks, as Spark itself does
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Generic

import msgspec
import pyspark
from penstock.failure import ConfigurationError
from pyspark import cloudpickle as untyped

cloudpickle: Any = untyped
_OURS = frozenset({"penstock", "penstock_spark", "penstock_kafka", "penstock_minio"})
_AT_CREATION = frozenset({"__post_init__"})
"""What msgspec looks for when it makes the class, and not later."""
_CACHE = "__msgspec_cache__"
"""What msgspec remembers of an enum, a dataclass and the like; nobody can pickle it."""
_ENCODER = ("enc_hook", "decimal_format", "uuid_format", "order")
_CODECS: dict[type, tuple[str, ...]] = {
    msgspec.json.Decoder: ("type", "strict", "dec_hook", "float_hook"),
    msgspec.msgpack.Decoder: ("type", "strict", "dec_hook", "ext_hook"),
    msgspec.json.Encoder: _ENCODER,
    msgspec.msgpack.Encoder: _ENCODER,
}
"""How each is made again."""
_MADE = frozenset(
    {
        _CACHE,
        "__annotations__",
        "__dict__",
        "__match_args__",
        "__module__",
        "__qualname__",
        "__slots__",
        "__weakref__",
    }
)
"""What the class statement makes by itself."""
_CONFIG = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
)


def shipped(value: Any) -> bytes:
    """``value`` and the user's code in it, for `landed` in a worker of any machine.

    Raises ConfigurationError for what cannot travel: an open file, a session, a Struct that
    contains itself.
    """
    out = io.BytesIO()
    with _travelling(_users_modules()):
        try:
            _Pickler(out).dump(value)
        except (pickle.PicklingError, TypeError, RecursionError) as error:
            raise ConfigurationError(
                f"{value!r:.200} cannot be sent to Spark's workers: {error}; let functions use "
                "only what they define themselves, and put classes into a package that is "
                "installed where the workers run"
            ) from error
    return out.getvalue()


def landed(data: bytes) -> Any:
    """What was `shipped`."""
    return pickle.loads(data)  # noqa: S301  # see the import


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # its base is untyped
    """cloudpickle with Structs by value."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self._open: set[type] = set()

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle ``obj``; asked for everything that has no fixed way."""
        if isinstance(obj, type) and issubclass(obj, msgspec.Struct) and _must_travel(obj):
            if obj in self._open:
                raise ConfigurationError(
                    f"struct {obj.__name__} contains itself and is not installed where Spark's "
                    "workers run: put it into a package that is"
                )
            self._open.add(obj)
            return _struct_parts(obj)
        if type(obj) in _CODECS:
            return _codec, (type(obj), {name: getattr(obj, name) for name in _CODECS[type(obj)]})
        if isinstance(obj, type) and _CACHE in vars(obj) and _must_travel(obj):
            delattr(obj, _CACHE)  # msgspec makes it again
        return super().reducer_override(obj)


def _struct_parts(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    own = vars(kind)
    namespace = {name: own[name] for name in _AT_CREATION if name in own}
    config = kind.__struct_config__
    options: dict[str, Any] = {name: getattr(config, name) for name in _CONFIG}
    options["tag"], options["tag_field"] = config.tag, config.tag_field
    fields = []
    for field in msgspec.structs.fields(kind):
        how: dict[str, Any] = {"name": field.encode_name}
        if field.default is not msgspec.NODEFAULT:
            how["default"] = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            how["default_factory"] = field.default_factory
        fields.append((field.name, field.type, how))
    later = {
        name: value
        for name, value in own.items()
        if name not in _MADE | _AT_CREATION
        and not name.startswith("__struct")
        and name not in kind.__struct_fields__
    }
    bases = tuple(base for base in kind.__bases__ if base is not msgspec.Struct)
    if Generic in bases:
        raise ConfigurationError(
            f"generic struct {kind.__name__} is not installed where Spark's workers run: put it "
            "into a package that is"
        )
    placed = frozenset(kind.__match_args__)
    made = (kind.__name__, kind.__module__, bases, fields, placed, namespace, options)
    return _struct, made, {"__qualname__": kind.__qualname__, **later}, None, None, _completed


def _struct(
    name: str,
    module: str,
    bases: tuple[type, ...],
    fields: list[tuple[str, Any, dict[str, Any]]],
    placed: frozenset[str],
    namespace: dict[str, Any],
    options: dict[str, Any],
) -> type[msgspec.Struct]:
    """Make the class again, the fields of its bases repeated: it may have changed them.

    ``placed`` are those that its constructor takes without their names; they come first.
    """
    first = [_field(field) for field in fields if field[0] in placed]
    rest = [_field(field) for field in fields if field[0] not in placed]
    if first and rest:
        bases = (msgspec.defstruct(name, first, bases=bases or None, module=module, **options),)
        first = []
    return msgspec.defstruct(
        name,
        first or rest,
        bases=bases or None,
        module=module,
        namespace=namespace,
        kw_only=bool(rest),
        **options,
    )


def _field(field: tuple[str, Any, dict[str, Any]]) -> tuple[str, Any, Any]:
    name, kind, how = field
    return name, kind, msgspec.field(**how)


def _codec(kind: Any, how: dict[str, Any]) -> Any:
    return kind(**how)


def _completed(kind: type, later: dict[str, Any]) -> None:
    """Give the class its methods, which may refer to it."""
    for name, value in later.items():
        setattr(kind, name, value)


def _must_travel(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    if module is None or module.__name__ == "__main__" or _is_users(module):
        return True
    found: Any = module
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not kind


@contextlib.contextmanager
def _travelling(modules: list[ModuleType]) -> Iterator[None]:
    """Pickle what stands in these modules by value meanwhile."""
    new = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _users_modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if _is_users(module)]


def _is_users(module: ModuleType) -> bool:
    """Whether a module is a file of the user's, and not installed."""
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "__main__")
    if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] in _OURS:
        return False
    return not file.startswith(_installed())


@cache
def _installed() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages(), pyspark.__path__[0]]
    return tuple(f"{folder}{os.sep}" for folder in found)
