"""A write from the first file to the manifest: what is published is whole, and nothing else stays.

Only the manifest counts, and it is written last, under a name that a store gives once: of several
writers of one place one wins. Files that it does not name are swept: after success all, for no
other writer of this place can win any more; after a failure those that bear the mark of the write.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import NamedTuple

import msgspec
import pyarrow as pa
from penstock import failure
from penstock.failure import ConfigurationError, PenstockError, StoreFailed
from penstock.record import OperatorFailed
from penstock.runtime.ports import SnapshotStore
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import (
    MANIFEST_KEY,
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
    encode,
    load,
)
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.writing import SavepointFiles, file_path, publish
from penstock_minio import copy
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock_spark.writing.draft import Filtered, Framed, Kept, OperatorDraft, SavepointDraft
from penstock_spark.writing.jobs import Jobs
from penstock_spark.writing.output import Target

log = logging.getLogger("penstock.spark")

_COPIES = 8
"""Files that are copied at a time."""
_LATE_S = 3.0
"""How long tasks of a job that failed, or was cancelled, may go on: Spark ends their Python workers
after two seconds."""
_FILE = re.compile(r"data/[^/]+/[^/]+/[^/]+\.parquet|sources/[^/]+/positions-[^/]+\.parquet")
"""Only what can be a file of a savepoint is ever deleted, wherever somebody writes one."""
_TOLD = re.compile(r"^penstock(?:\.\w+)*\.(\w+): (.*)\Z", re.MULTILINE | re.DOTALL)


class WrittenSavepoint(NamedTuple):
    """A savepoint that was published."""

    url: str
    manifest: SavepointManifest
    copied_files: int
    """Of the savepoint that it was made from, byte by byte."""

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of each state, by operator and state; those without any, too."""
        found = {(o.uid, s.name): 0 for o in self.manifest.operators for s in o.states}
        for file in self.manifest.files:
            found[file.operator, file.state] += file.rows
        return found

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.manifest.files)


class Write:
    """One try to write a savepoint.

    Args:
        draft: what to write.
        base: the savepoint that is modified, and its store; None for a new one.
        frame_of: the rows of a state that is kept, as a DataFrame.
        store: opened at the new savepoint's own place.
        tasks: how many tasks write keyed state.
    """

    def __init__(
        self,
        draft: SavepointDraft,
        base: tuple[Savepoint, SnapshotStore] | None,
        frame_of: Callable[[Kept], DataFrame],
        store: SnapshotStore,
        tasks: int,
    ) -> None:
        self._draft = draft
        self._base = base
        self._frame_of = frame_of
        self._store = store
        self._mark = secrets.token_hex(6)
        self._jobs = Jobs(Target(store.url, self._mark, draft.max_parallelism), tasks)
        self._now_ms = time.time_ns() // 1_000_000
        self._copied = 0

    def run(
        self, savepoint_id: str, check: Callable[[SavepointManifest, str], None]
    ) -> WrittenSavepoint:
        """Write all files, then the manifest; ``check`` looks at it before anything is written.

        Raises ConfigurationError when a savepoint stands here, or rows are not what they must be;
        CorruptedObject, StoreFailed, UserCodeFailed. Whatever is raised, nothing was published.
        """
        draft = self._draft
        draft.check()
        manifest = SavepointManifest(
            savepoint_id=savepoint_id,
            app=draft.app,
            checkpoint=draft.checkpoint,
            created_at_ms=self._now_ms,
            created_by=f"penstock {metadata.version('penstock')}",
            parent=draft.parent,
            max_parallelism=draft.max_parallelism,
            sources=draft.sources,
            watermarks=draft.watermarks,
            operators=tuple(operator.described() for operator in draft.operators),
        )
        manifest = load(encode(manifest), self._store.url)
        check(manifest, self._store.url)
        if self._store.list(MANIFEST_KEY):
            raise self._taken()
        try:
            files = [file for operator in draft.operators for file in self._files(operator)]
            manifest = msgspec.structs.replace(manifest, files=tuple(files))
            manifest = load(encode(manifest), self._store.url)
            self._publish(manifest)
        except BaseException as error:
            self._sweep_own()
            if isinstance(error, PySparkException | KeyboardInterrupt):
                time.sleep(_LATE_S)
                self._sweep_own()
            told = _told(error) if isinstance(error, PySparkException) else None
            if told is not None:
                raise told from error
            raise
        self._sweep_others({file.path for file in files})
        return WrittenSavepoint(self._store.url, manifest, self._copied)

    def _files(self, draft: OperatorDraft) -> list[FileEntry]:
        """Write the states of an operator; their entries in the order of their rows."""
        operator = draft.described()
        found: list[FileEntry] = []
        left_by_bootstrap: list[StateEntry] = []
        for state in draft.states:
            match state.content:
                case Kept() as kept if self._is_as_it_was(kept, state.entry):
                    found += self._copies(operator, state.entry, kept)
                case Kept() as kept:
                    frame = self._frame_of(kept)
                    found += _collected(self._jobs.filtered(operator, state.entry, frame))
                case Filtered(frame):
                    found += _collected(self._jobs.filtered(operator, state.entry, frame()))
                case Framed() as framed:
                    found += _collected(self._jobs.framed(operator, state.entry, framed))
                case _ if operator.kind == "source":
                    found += self._positions(operator, state.entry)
                case _:
                    left_by_bootstrap.append(state.entry)
        if left_by_bootstrap:
            made = msgspec.structs.replace(operator, states=tuple(left_by_bootstrap))
            job = self._jobs.bootstrap(made, draft.bootstrap, self._now_ms)
            found += _collected(job)
        return found

    def _is_as_it_was(self, kept: Kept, state: StateEntry) -> bool:
        """Whether the files can stay: their rows stand under the key groups that they have."""
        draft = self._draft
        return (
            not kept.files or state.key is None or (draft.kept_parallelism == draft.max_parallelism)
        )

    def _copies(self, operator: OperatorEntry, state: StateEntry, kept: Kept) -> list[FileEntry]:
        assert self._base is not None, "kept files are of a savepoint"
        source = self._base[1]

        def copied(file: FileEntry) -> FileEntry:
            path = file_path(operator, state, file.sha256, self._mark)
            copy(source, file.path, self._store, path, size=file.bytes, sha256=file.sha256)
            return msgspec.structs.replace(file, path=path, operator=operator.uid, state=state.name)

        with ThreadPoolExecutor(_COPIES) as pool:
            found = list(pool.map(copied, kept.files))
        self._copied += len(found)
        return found

    def _positions(self, operator: OperatorEntry, state: StateEntry) -> list[FileEntry]:
        """The readable copy of a source's positions."""
        source = next(source for source in self._draft.sources if source.uid == operator.uid)
        out = SavepointFiles(
            self._store, operator, state, self._draft.max_parallelism, mark=self._mark
        )
        out.add(positions(operator, state, source))
        return out.close()

    def _publish(self, manifest: SavepointManifest) -> None:
        try:
            publish(self._store, manifest)
        except StoreFailed:
            if self._store.list(MANIFEST_KEY):
                raise self._taken() from None
            raise

    def _taken(self) -> ConfigurationError:
        return ConfigurationError(
            f"a savepoint stands at {self._store.url} already, and savepoints are never changed: "
            "write to another place, or dispose of it first (penstock savepoint dispose)"
        )

    def _sweep_own(self) -> None:
        self._sweep(lambda key: key.rpartition("/")[2].find(self._mark) >= 0)

    def _sweep_others(self, published: set[str]) -> None:
        self._sweep(lambda key: key not in published)

    def _sweep(self, is_orphan: Callable[[str], bool]) -> None:
        """Delete files that count no more; whether that works decides nothing."""
        try:
            keys = [*self._store.list("data/"), *self._store.list("sources/")]
            orphans = [key for key in keys if _FILE.fullmatch(key) and is_orphan(key)]
            self._store.delete(orphans)
        except PenstockError as error:
            log.warning("files that no manifest names are left in %s: %s", self._store.url, error)
            return
        if orphans:
            log.info("swept %d files that no manifest names: %s", len(orphans), self._store.url)


def positions(operator: OperatorEntry, state: StateEntry, source: SourceEntry) -> pa.Table:
    """The rows of a source's positions."""
    rows = [
        {
            "service": operator.service,
            "stage": operator.stage,
            "source_uid": source.uid,
            "topic": source.topic,
            "partition": partition,
            "position": position,
        }
        for partition, position in sorted(source.positions.items())
    ]
    return pa.Table.from_pylist(rows, StateLayout(operator, state).arrow_schema)


def _collected(job: DataFrame) -> Iterable[FileEntry]:
    """Run a job; the entries that its tasks gave back, in the order of their rows."""
    found = [msgspec.json.decode(row[0], type=FileEntry) for row in job.collect()]
    return sorted(found, key=lambda file: (file.state, *_first(file)))


def _first(file: FileEntry) -> tuple[int, int, bytes]:
    lower = file.lower
    group = -1 if file.key_group_min is None else file.key_group_min
    return group, int(lower.get("partition", 0)), bytes.fromhex(str(lower.get("key", "")))


def _told(error: PySparkException) -> PenstockError | None:
    """What a task said, without Spark's words around it; None when it was not one of ours."""
    found = list(_TOLD.finditer(str(error)))
    if not found:
        return None
    name, text = found[-1].groups()
    kind = getattr(failure, name, None)
    if name == OperatorFailed.__name__:
        return failure.UserCodeFailed(text.strip())
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(text.strip())
    return None
