"""Where bounded sources end: ``--until`` as it is given, and checked against what is there."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from penstock.failure import ConfigurationError
from penstock.graph import ServiceSpec, SourceSpec

Bounds = dict[str, dict[int, int]]
"""Topic -> partition -> the first offset that is not read."""

_EXAMPLE = '{"orders": {"0": 1200}}'
_decoder = msgspec.json.Decoder(dict[str, dict[int, int]])


def parsed(text: str, latest: Callable[[], Bounds] | None = None) -> Bounds:
    """The bounds in ``text``: JSON, or the name of a file of it. Raises ConfigurationError.

    ``latest`` gives where the sources end now, where that may be asked for by this word.
    """
    if text == "latest" and latest is not None:
        return latest()
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text()
        except OSError as error:
            raise ConfigurationError(
                f"--until {text!r} is neither JSON like {_EXAMPLE} nor a file of it: "
                f"{error.strerror}"
            ) from None
    try:
        bounds = _decoder.decode(source)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(
            f"--until is not topic -> partition -> offset, like {_EXAMPLE}: {error}"
        ) from None
    for topic, offsets in bounds.items():
        for partition, offset in offsets.items():
            if partition < 0 or offset < 0:
                raise ConfigurationError(
                    f"--until has offset {offset} of {topic}[{partition}]: neither is negative"
                )
    return bounds


def check(
    bounds: Bounds, services: Iterable[ServiceSpec], partitions: Callable[[str], int]
) -> None:
    """Refuse bounds that do not say for every source partition where it ends.

    Raises ConfigurationError: a source that never ends would keep the application from stopping.
    """
    topics = {
        stage.input.topic
        for service in services
        for stage in service.stages
        if isinstance(stage.input, SourceSpec)
    }
    for topic in sorted(topics):
        count = partitions(topic)
        missing = sorted(set(range(count)) - bounds.get(topic, {}).keys())
        if missing:
            raise ConfigurationError(
                f"--until does not say where partitions {missing} of topic {topic!r} end; give an "
                f"offset for each of its {count} partitions"
            )
    unknown = sorted(bounds.keys() - topics)
    if unknown:
        raise ConfigurationError(
            f"--until names {', '.join(map(repr, unknown))}, which no source reads: "
            f"{', '.join(sorted(topics))}"
        )
