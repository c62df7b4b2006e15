"""The same service in one plain process: records from Kafka, its own operators, state in a dict.

Arguments: bootstrap, records, a folder. Prints seconds until the state is there, and until it is
written as a savepoint into the folder, one file after the other, by the same code as in a replay.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from penstock.application import load
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import OperatorEntry
from penstock.savepoint.writing import SavepointFiles
from penstock.snapshot.state import SubtaskState
from penstock_kafka import KafkaCluster
from penstock_minio import FileStore

BATCH = 4000


class Straight:
    """An edge that is a call."""

    def __init__(self, push: Any) -> None:
        self.write = lambda keys, values, times: push(0, keys, values, times)

    def watermark(self, _: int) -> None:
        """Passed on by the caller."""

    def idle(self, _: bool) -> None:
        """Nobody waits."""


def main(bootstrap: str, records: int, folder: str) -> None:
    """Read, run, write."""
    service = load(Path(__file__).with_name("replay_service.py"))
    topic = os.environ["REPLAY_TOPIC"]
    source, keyed = service.stages()
    state = SubtaskState("plain", range(1))
    chain = service.build(keyed.name, state=state, edges={}, sinks={})
    chain.restored()
    chain.open()
    first = service.build(
        source.name,
        state=SubtaskState("plain-source", range(4)),
        edges={keyed.name: Straight(chain.push)},
        sinks={},
    )
    first.restored()
    first.open()
    began, cpu = time.monotonic(), time.process_time()
    reader = KafkaCluster(bootstrap).source_reader(
        topic, dict.fromkeys(range(4)), "earliest", "plain", want_keys=False
    )
    done = 0
    while done < records:
        for run in reader.poll(BATCH, 1.0):
            first.push_source(run.partition, run.keys, run.values, run.times)
            done += len(run.values)
        watermark = first.source_watermark(done)
        if watermark is not None:
            chain.on_watermark(watermark)
    read = time.monotonic() - began
    reader.close()
    write(service, state, folder)
    seconds = time.monotonic() - began
    cpu = time.process_time() - cpu
    print(json.dumps({"state": read, "savepoint": seconds, "cpu": cpu}))


def write(service: Any, state: SubtaskState, folder: str) -> None:
    """The state's files."""
    specs = {
        s.name: s for stage in service.stages() for o in stage.spec().operators for s in o.states
    }
    for table in state.tables():
        spec = specs[table.name]
        entry = state_entry(spec.name, spec.kind, spec.key, spec.value)
        operator = OperatorEntry(
            uid=table.operator, kind="keyed_process", service=service.name, stage="plain",
            parallelism=1, ownership="key_group", partitions=1, states=(entry,),
        )  # fmt: skip
        layout = StateLayout(operator, entry)
        entries = layout.decoded(msgspec.msgpack.encode(table.bucket(0)), "plain")
        files = SavepointFiles(FileStore(Path(folder)), operator, entry, service.max_parallelism)
        files.add(layout.batch(entries, service.max_parallelism))
        files.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
