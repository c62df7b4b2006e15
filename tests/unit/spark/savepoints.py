"""Savepoints made by hand for tests of the readers: any states, any number of rows."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import (
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
    WatermarkEntry,
)
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.store import SavepointStore
from penstock.savepoint.writing import SavepointFiles, publish
from penstock.schema import schema_of
from penstock_minio import FileStore

MAX_PARALLELISM = 128


class Balance(msgspec.Struct, frozen=True):
    """A state that a savepoint shows as columns; one of its names is a column of the format."""

    account: str
    total: int = 0
    key: str = ""


def operator(uid: str, *states: StateEntry, ownership: Any = "key_group") -> OperatorEntry:
    return OperatorEntry(
        uid=uid, kind="keyed_process", service="ledger", stage="ledger", parallelism=2,
        ownership=ownership, partitions=16, states=states,
    )  # fmt: skip


def written(
    store: SavepointStore,
    states: Mapping[tuple[str, str], Any],
    operators: Iterable[OperatorEntry],
    *,
    file_rows: int = 1_000_000,
) -> Savepoint:
    """A published savepoint: entries of each state, as `StateLayout.batch` takes them."""
    files: list[FileEntry] = []
    for each in operators:
        for state in each.states:
            layout = StateLayout(each, state)
            out = SavepointFiles(store, each, state, MAX_PARALLELISM, file_rows=file_rows)
            out.add(layout.batch(states[each.uid, state.name], MAX_PARALLELISM))
            files += out.close()
    publish(
        store,
        SavepointManifest(
            savepoint_id="before-the-change", app="payments", checkpoint=7, created_at_ms=1,
            created_by="penstock 0", max_parallelism=MAX_PARALLELISM,
            sources=(SourceEntry(
                uid="orders", stage="ledger", topic="orders", positions={0: 10, 1: 20}
            ),),
            watermarks=(WatermarkEntry(
                stage="ledger", low=0, high=16, partitions=16, watermark_ms=99
            ),),
            operators=tuple(operators), files=tuple(files),
        ),
    )  # fmt: skip
    return Savepoint.open(store)


BALANCE = state_entry("balance", "value", schema_of(str), schema_of(Balance))
HISTORY = state_entry("history", "list", schema_of(str), schema_of(int))
LIMITS = state_entry("limits", "map", schema_of(str), schema_of(dict[str, float]))
TIMERS = state_entry("timers", "timers", schema_of(str), schema_of(int))
RULES = state_entry("rules", "operator_list", None, schema_of(str))


def ledger(folder: Path, accounts: int = 200, *, file_rows: int = 60) -> Savepoint:
    """Balances, histories, limits, timers and rules of accounts ``acc-0`` …, in several files."""
    names = [f"acc-{number}" for number in range(accounts)]
    states = {
        ("ledger", "balance"): {
            name: Balance(name, number * 10, f"k{number}") for number, name in enumerate(names)
        },
        ("ledger", "history"): {name: [1, 2, 3] for name in names[:9]},
        ("ledger", "limits"): {name: {"day": 1.5, "week": 2.5} for name in names[:9]},
        ("ledger", "timers"): {(0, 1000 + n, name): n for n, name in enumerate(names[:20])},
        ("rules", "rules"): [(0, ["a", "b"]), (1, ["c"])],
    }
    operators = (operator("ledger", BALANCE, HISTORY, LIMITS, TIMERS),
                 operator("rules", RULES, ownership="none"))  # fmt: skip
    return written(FileStore(folder), states, operators, file_rows=file_rows)
