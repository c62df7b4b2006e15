"""The names of things: newtypes for ids, so that no bare integer or string crosses a boundary."""

import re
from typing import NewType

import msgspec

CheckpointId = NewType("CheckpointId", int)
"""A checkpoint's number: strictly increasing over the life of an application, never used twice."""
Attempt = NewType("Attempt", int)
"""One deployment of the application between two restores; strictly increasing."""
Term = NewType("Term", int)
"""One coordinator's leadership: the offset of its Term record in the decision log (L1)."""
Position = NewType("Position", int)
"""The NEXT offset to read from a partition, never the last one read."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class SubtaskId(msgspec.Struct, frozen=True, order=True):
    """One parallel instance of one stage; printed as ``counter.words/0``."""

    stage: str
    index: int

    def __str__(self) -> str:
        return f"{self.stage}/{self.index}"


class ChannelId(msgspec.Struct, frozen=True, order=True):
    """(edge, partition, upstream subtask): the unit of order and of alignment.

    ``upstream`` is the subtask's number among all upstream subtasks of the edge, in plan order.
    """

    edge: str
    partition: int
    upstream: int

    def __str__(self) -> str:
        return f"{self.edge}[{self.partition}]<-{self.upstream}"


class InvalidName(ValueError):
    """A name that cannot be part of a topic, an object key or a transactional id."""


def checked_name(what: str, name: str) -> str:
    """Return ``name`` when it may stand in topics, object keys and transactional ids.

    Raises InvalidName: one alphabet everywhere keeps prefixes apart (L16) and object keys free of
    path tricks.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"{what} {name!r} is not a valid name: use 1-100 characters of a-z, 0-9, '.', '_' and "
            "'-', starting with a letter or digit, without '..'"
        )
    return name


def transactional_prefix(app: str) -> str:
    """The prefix of every transactional id of ``app``; '!' is outside the alphabet of names, so no
    application's prefix is a prefix of another's (L16).
    """
    return f"penstock.{app}!"


def transactional_id(
    app: str, operator: str, index: int, slot: int, attempt: Attempt = Attempt(0)
) -> str:
    """The transactional id of one slot of the producer pool of a sink subtask in one attempt (L16).

    Nothing fences an initialisation: a subtask or a recovery that slept may initialise an id at any
    time, and so aborts what is open under it. So no two attempts share an id (decision 0007).
    """
    return f"{transactional_prefix(app)}{attempt}!{operator}!{index}!{slot}"


def attempt_of(transactional_id: str) -> Attempt:
    """The attempt whose id this is; 0 when the name does not say."""
    parts = transactional_id.split("!")
    return Attempt(int(parts[1])) if len(parts) == 5 and parts[1].isdecimal() else Attempt(0)


def owned_partitions(partitions: int, parallelism: int, index: int) -> range:
    """The contiguous partitions that subtask ``index`` of ``parallelism`` owns (L20)."""
    return range(index * partitions // parallelism, (index + 1) * partitions // parallelism)
