"""What a Deploy means for one worker: its slot, its upstreams, its input. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence

from penstock.control import Deploy
from penstock.failure import ConfigurationError
from penstock.graph import EdgeInputSpec, ServiceSpec, StageSpec
from penstock.ids import SubtaskId, owned_partitions


def upstreams(deploy: Deploy, edge: str) -> list[SubtaskId]:
    """Every subtask that writes ``edge``, in plan order: its place is its upstream number."""
    return [
        SubtaskId(stage.name, index)
        for service in deploy.services
        for stage in service.stages
        if any(output.name == edge for output in stage.edges)
        for index in range(deploy.parallelism[service.name])
    ]


def slot_of(deploy: Deploy, worker: str) -> tuple[str, int] | None:
    """(service, index) that the deployment gives to ``worker``, if any."""
    for place, name in deploy.assignment.items():
        if name == worker:
            service, _, index = place.rpartition("/")
            return service, int(index)
    return None


def service_of(deploy: Deploy, name: str) -> ServiceSpec:
    """The deployed service ``name``."""
    return next(service for service in deploy.services if service.name == name)


def edge_input(stage: StageSpec) -> EdgeInputSpec | None:
    """The stage's input when it is an edge."""
    return stage.input if isinstance(stage.input, EdgeInputSpec) else None


def parallelism_of(pairs: Sequence[str], names: list[str] | None) -> dict[str, int]:
    """``N`` for all and ``service=N`` for one; 1 by default."""
    result = dict.fromkeys(names or [], 1)
    for pair in pairs:
        name, given, count = pair.rpartition("=")
        for_all = names is not None and not given
        if not count.isdecimal() or int(count) < 1 or not (name or for_all):
            raise ConfigurationError(
                f"parallelism {pair!r} is not SERVICE=N"
                + (" or N" if names is not None else "")
                + " with N at least 1, like counter=2"
            )
        if name:
            if names is not None and name not in names:
                raise ConfigurationError(
                    f"parallelism {pair!r} names no service of this run: {', '.join(names)}"
                )
            result[name] = int(count)
        else:
            result = dict.fromkeys(result, int(count))
    return result


def check_parallelism(services: Iterable[ServiceSpec], parallelism: Mapping[str, int]) -> None:
    """Raise ConfigurationError for a subtask that would own no partition of its edge (L20)."""
    for service in services:
        wanted = parallelism[service.name]
        for stage in service.stages:
            edge = edge_input(stage)
            if edge is not None and wanted > edge.partitions:
                raise ConfigurationError(
                    f"service {service.name!r} is to run as {wanted} subtasks, but its edge "
                    f"{edge.uid!r} has {edge.partitions} partitions: start at most so many; the "
                    "partitions= of an edge are fixed for the life of the application"
                )


def lanes(deploy: Deploy, edge: str, partitions: int) -> list[int]:
    """Bucket of ``edge`` -> the partition whose frames carry it (decision 0008).

    The buckets of one reading subtask share its first partition. Where stages of different
    parallelism read one edge, every bucket has its own.
    """
    readers = {
        deploy.parallelism[service.name]
        for service in deploy.services
        for stage in service.stages
        if isinstance(stage.input, EdgeInputSpec) and stage.input.uid == edge
    }
    if len(readers) != 1:
        return list(range(partitions))
    parallelism = readers.pop()
    owned = [owned_partitions(partitions, parallelism, index) for index in range(parallelism)]
    return [buckets.start for buckets in owned for _ in buckets]
