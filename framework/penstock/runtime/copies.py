"""Isolated copies of an application: their names, the topics that they need, and their removal.

A copy runs the same files under another application id, so that control topics, edges, groups,
transactional ids and snapshots are its own (L16, L23), and writes to topics of its own.
"""

from collections.abc import Iterable, Mapping, Sequence

from penstock import application
from penstock.api import Service
from penstock.failure import ConfigurationError
from penstock.graph import ServiceSpec, SourceSpec
from penstock.ids import transactional_prefix
from penstock.runtime import bounds
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.savepoint_making import history_of

Positions = dict[str, dict[int, int]]


def loaded(files: Sequence[str]) -> dict[str, Service]:
    """File -> its service, checked to be one whole application. Raises ConfigurationError."""
    services = {file: application.load(file) for file in files}
    application.union(services.values())
    return services


def sinks_of(specs: Iterable[ServiceSpec]) -> list[str]:
    """The topics that an application writes for others."""
    return sorted({sink.topic for spec in specs for stage in spec.stages for sink in stage.sinks})


def sources_of(specs: Iterable[ServiceSpec]) -> list[str]:
    """The topics that an application reads from others."""
    inputs = (stage.input for spec in specs for stage in spec.stages)
    return sorted({entry.topic for entry in inputs if isinstance(entry, SourceSpec)})


def ends(kafka: Kafka, topics: Iterable[str]) -> Positions:
    """Topic -> partition -> where it ends now."""
    return {topic: dict(enumerate(kafka.end_positions(topic))) for topic in topics}


def until(given: str, specs: Sequence[ServiceSpec], kafka: Kafka) -> Positions:
    """``--until`` of a whole application: ``latest`` is where its sources end now.

    Raises ConfigurationError when it does not say for every source partition where it ends.
    """
    found = bounds.parsed(given, lambda: ends(kafka, sources_of(specs)))
    bounds.check(found, specs, kafka.partitions)
    return found


def check_ahead(begin: Positions, until: Positions) -> None:
    """Refuse a range that ends before it begins; ConfigurationError naming the first place."""
    for topic, offsets in sorted(until.items()):
        for partition, end in sorted(offsets.items()):
            start = begin.get(topic, {}).get(partition, 0)
            if end < start:
                raise ConfigurationError(
                    f"{topic}[{partition}] is to be read from {start} until {end}, which lies "
                    "before it; give a later end, or begin earlier"
                )


def make_sinks(kafka: Kafka, topics: Mapping[str, str]) -> None:
    """Create for each topic the one that a copy writes instead of it."""
    for topic, copy in topics.items():
        kafka.copy_topic(topic, copy)


def remove(
    kafka: Kafka, store: SnapshotStore, app: str, sinks: Iterable[str], *, keep: str = ""
) -> None:
    """Delete a copy that does not run: its topics, its output and its objects.

    ``keep``: object keys that begin so stay. Raises ConfigurationError when the copy runs.
    """
    if kafka.topics_under(f"{app}.decisions"):
        history = history_of(kafka, app)
        if history.deploy is not None and not history.stopped:
            raise ConfigurationError(
                f"application {app!r} has not stopped: nothing of it is deleted; stop it (Ctrl-C, "
                f"or penstock savepoint trigger {app} --stop), then try again"
            )
    recovery = kafka.recovery(app)
    try:
        recovery.fence(set(recovery.open_transactions(transactional_prefix(app))))
    finally:
        recovery.close()
    own = [f"{app}.{name}" for name in ("decisions", "reports", "witness")]
    own += kafka.topics_under(f"{app}.edge.")
    kafka.delete_topics([*own, *sinks])
    store.delete(key for key in store.list(f"{app}/") if not (keep and key.startswith(keep)))
