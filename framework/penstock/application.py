"""An application: the union of the services that join it, checked before anything runs."""

import importlib.util
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.api import Service
from penstock.failure import ConfigurationError, PenstockError
from penstock.graph import EdgeInputSpec, EdgeOutputSpec, ServiceSpec, SourceSpec, StageSpec
from penstock.record import described

_KEYED = frozenset({"keyed_process", "reduce", "aggregate"})
_ANY = "Any"


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge with both its ends."""

    name: str
    partitions: int
    writers: tuple[str, ...]
    """Stages, in the order of the services."""
    readers: tuple[str, ...]


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A checked graph."""

    app: str
    services: tuple[ServiceSpec, ...]
    edges: dict[str, Edge]


def load(path: str | Path, *, app: str | None = None, sink_suffix: str = "") -> Service:
    """The service that the Python file ``path`` defines at its top level.

    With ``app`` it runs under that application id instead of its own, and with ``sink_suffix`` it
    writes to topics of that ending: a copy of an application that shares nothing with it. Raises
    ConfigurationError when there is no such file, when it fails, or when it holds none or several
    services.
    """
    services = load_all(path)
    if len(services) > 1:
        names = ", ".join(repr(service.name) for service in services)
        raise ConfigurationError(
            f"{path} defines {len(services)} services ({names}); a worker runs one: put each in "
            "a file "
            "of its own"
        )
    service = services[0]
    service.run_as(service.app if app is None else app, sink_suffix=sink_suffix)
    return service


def load_all(path: str | Path) -> list[Service]:
    """All services that the Python file ``path`` defines at its top level; at least one."""
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"there is no service file {str(path)!r}; name a Python file")
    name = f"penstock_service_{file.stem}_{zlib.crc32(str(file.resolve()).encode()):x}"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ConfigurationError(f"{path} is not a Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # msgspec and typing look annotations up by module
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as if the file were run as a script
    try:
        found.loader.exec_module(module)
    except PenstockError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{path} cannot be loaded: {described(error)}") from error
    services: list[Service] = []
    for value in vars(module).values():
        if isinstance(value, Service) and value not in services:
            services.append(value)
    if not services:
        raise ConfigurationError(
            f"{path} defines no service; assign one at its top level: "
            'service = penstock.Service("name", app="app")'
        )
    return services


def topics(spec: ServiceSpec) -> list[str]:
    """The source and sink topics of a service, which must exist."""
    names = [stage.input.topic for stage in spec.stages if isinstance(stage.input, SourceSpec)]
    names += [sink.topic for stage in spec.stages for sink in stage.sinks]
    return sorted(set(names))


def union(services: Iterable[Service]) -> Application:
    """The application of these services; raises ConfigurationError, see `union_specs`."""
    return union_specs(service.spec() for service in services)


def union_specs(specs: Iterable[ServiceSpec], *, open_edges: bool = False) -> Application:
    """The graph of these services; with ``open_edges``, one side of an edge may be missing.

    Raises ConfigurationError for different application ids or key groups, two services with one
    name,
    two steps with one uid, an edge that only one side knows, and ends of an edge that differ in
    types
    or partitions.
    """
    services = tuple(specs)
    if not services:
        raise ConfigurationError("an application needs at least one service; name a service file")
    _check_apps(services)
    _check_uids(services)
    return Application(app=services[0].app, services=services, edges=_edges(services, open_edges))


def _check_apps(services: tuple[ServiceSpec, ...]) -> None:
    first = services[0]
    names: set[str] = set()
    for service in services:
        if service.app != first.app:
            raise ConfigurationError(
                f"service {service.name!r} is of app {service.app!r}, service {first.name!r} of "
                "app "
                f"{first.app!r}; services that run together need one app="
            )
        if service.max_parallelism != first.max_parallelism:
            raise ConfigurationError(
                f"service {service.name!r} has max_parallelism={service.max_parallelism}, service "
                f"{first.name!r} {first.max_parallelism}; it must be the same in all"
            )
        if service.name in names:
            raise ConfigurationError(
                f"two services are named {service.name!r}; give each its own name"
            )
        names.add(service.name)


def _check_uids(services: tuple[ServiceSpec, ...]) -> None:
    owners: dict[str, str] = {}
    for service in services:
        for stage in service.stages:
            uids = [operator.uid for operator in stage.operators]
            uids += [sink.uid for sink in stage.sinks]
            if isinstance(stage.input, SourceSpec):
                uids.append(stage.input.uid)
            for uid in uids:
                if uid in owners:
                    raise ConfigurationError(
                        f"the uid {uid!r} stands for a step of service {owners[uid]!r} and for "
                        "one of "
                        f"service {service.name!r}; state and transactions belong to uids, give "
                        "each "
                        "step of the application its own"
                    )
                owners[uid] = service.name


def _edges(services: tuple[ServiceSpec, ...], open_edges: bool) -> dict[str, Edge]:
    writers: dict[str, list[tuple[str, str, EdgeOutputSpec]]] = {}
    readers: dict[str, list[tuple[str, StageSpec, EdgeInputSpec]]] = {}
    for service in services:
        for stage in service.stages:
            for edge in stage.edges:
                writers.setdefault(edge.name, []).append((service.name, stage.name, edge))
            if isinstance(stage.input, EdgeInputSpec):
                readers.setdefault(stage.input.uid, []).append((service.name, stage, stage.input))
    for name in sorted(writers.keys() ^ readers.keys()):
        if open_edges:
            continue
        if name in writers:
            raise ConfigurationError(
                f"edge {name!r} is written by service {writers[name][0][0]!r} but read by "
                "nobody; add a "
                f"service with from_edge({name!r}, ...), or take to_edge({name!r}) away"
            )
        raise ConfigurationError(
            f"edge {name!r} is read by service {readers[name][0][0]!r} but written by nobody; "
            "add a "
            f"service with to_edge({name!r}), or correct the name"
        )
    found: dict[str, Edge] = {}
    for name, ends in writers.items():
        for writer, _, output in ends:
            for reader, stage, entry in readers.get(name, ()):
                _check_ends(name, writer, output, reader, stage, entry)
        found[name] = Edge(
            name=name,
            partitions=ends[0][2].partitions,
            writers=tuple(stage_name for _, stage_name, _ in ends),
            readers=tuple(stage.name for _, stage, _ in readers.get(name, ())),
        )
    return found


def _check_ends(
    name: str,
    writer: str,
    output: EdgeOutputSpec,
    reader: str,
    stage: StageSpec,
    entry: EdgeInputSpec,
) -> None:
    if output.partitions != entry.partitions:
        raise ConfigurationError(
            f"edge {name!r}: service {writer!r} writes {output.partitions} partitions, service "
            f"{reader!r} reads {entry.partitions}; give both ends the same partitions="
        )
    if _ANY not in (output.value, entry.value) and output.value != entry.value:
        raise ConfigurationError(
            f"edge {name!r}: service {writer!r} writes values of {output.value}, service "
            f"{reader!r} "
            f"reads {entry.value}; give from_edge() the type that to_edge() sends"
        )
    if output.key == "None":
        keyed = [operator.uid for operator in stage.operators if operator.kind in _KEYED]
        if keyed:
            raise ConfigurationError(
                f"edge {name!r}: service {writer!r} writes records without a key, but step "
                f"{keyed[0]!r} of service {reader!r} needs one; give to_edge() a key=, or put "
                ".key_by() "
                "before the step"
            )
    elif _ANY not in (output.key, entry.key) and output.key != entry.key:
        raise ConfigurationError(
            f"edge {name!r}: service {writer!r} writes keys of {output.key}, service {reader!r} "
            "reads "
            f"{entry.key}; give from_edge() the key type that to_edge() sends"
        )
