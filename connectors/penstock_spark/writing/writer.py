"""SavepointWriter: a savepoint composed of DataFrames, of another savepoint, or of both."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock.api import Service
from penstock.runtime.connectors import store_from
from penstock.savepoint.reading import Savepoint
from pyspark.sql import SparkSession

from penstock_spark.enabling import enable
from penstock_spark.writing.adding import Additions
from penstock_spark.writing.declared import Graph
from penstock_spark.writing.draft import SavepointDraft, checked
from penstock_spark.writing.publishing import Write, WrittenSavepoint


class SavepointWriter(Additions):
    """A savepoint in the making; see `new` and `from_existing`.

    A writer is never changed: each method gives another one, so that one can be gone on from twice.
    Nothing runs before `write`, which may be called several times.
    """

    @classmethod
    def new(
        cls,
        spark: SparkSession,
        *,
        app: str,
        max_parallelism: int | None = None,
        services: Sequence[Service | str | Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """An empty savepoint.

        Args:
            spark: a session, on any master.
            app: the application that it is for, as people read it: any may start from it.
            max_parallelism: the number of key groups, as the services have it; by default theirs,
                or 128.
            services: `penstock.Service` objects, or files that define them. The savepoint is then
                checked against them, and types, services and stages need not be said.
            env: the settings PENSTOCK_S3_… of the stores, by default those of this process.
        """
        graph = Graph(services)
        groups = max_parallelism or graph.max_parallelism or 128
        draft = SavepointDraft(checked("app", app), groups)
        return cls(spark, draft, graph=graph, base=None, env=env).with_max_parallelism(groups)

    @classmethod
    def from_existing(
        cls,
        spark: SparkSession,
        url: str,
        *,
        app: str | None = None,
        services: Sequence[Service | str | Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """A copy of the savepoint at ``url``, to be changed.

        What is not changed is copied file by file, by the store itself where it can. Raises
        CorruptedObject when there is no savepoint.
        """
        given = os.environ if env is None else env
        store = store_from({**given, "PENSTOCK_STORE": url})
        savepoint = Savepoint.open(store)
        draft = SavepointDraft.of(savepoint.manifest, store.url, app)
        return cls(spark, draft, graph=Graph(services), base=(savepoint, store), env=env)

    def write(
        self, url: str, *, savepoint_id: str | None = None, tasks: int | None = None
    ) -> WrittenSavepoint:
        """Write the savepoint, all of it or nothing: it is there when its manifest is.

        Args:
            url: its own place, ``s3://BUCKET/PREFIX/APP/savepoints/NAME`` or ``file:///DIR/…``.
            savepoint_id: its name; by default the last part of ``url``.
            tasks: how many tasks write keyed state, each a range of key groups; by default twice
                the cores that Spark has.

        Raises:
            ConfigurationError: a savepoint stands there; rows or types do not fit, naming
                operator, state and key; the services cannot take it.
            UserCodeFailed: a function or process raised.
            CorruptedObject: a file of the savepoint that is modified is not what it should be.
            StoreFailed: the store did not take it.
        """
        given = os.environ if self._env is None else self._env
        store = store_from({**given, "PENSTOCK_STORE": url})
        name = checked("savepoint", savepoint_id or store.url.rstrip("/").rpartition("/")[2])
        enable(self._spark, given)
        count = tasks or 2 * self._spark.sparkContext.defaultParallelism
        return Write(self._draft, self._base, self._kept, store, count).run(name, self._graph.check)
