"""The manifest of a savepoint: what comes back, and what is refused before anybody follows it."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint.manifest import (
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
    WatermarkEntry,
    encode,
    load,
)
from penstock.schema import Schema

SUM = "a" * 64
BOUND = {"key_group": 3, "key": "a161"}
FILE = FileEntry(
    path="data/count/seen/1.parquet",
    operator="count",
    state="seen",
    rows=1,
    bytes=10,
    sha256=SUM,
    key_group_min=3,
    key_group_max=3,
    lower=BOUND,
    upper=BOUND,
)
SEEN = StateEntry(name="seen", kind="value", key=Schema("str"), value=Schema("int"))
OPERATOR = OperatorEntry(
    uid="count",
    kind="keyed_process",
    service="s",
    stage="s.words",
    parallelism=2,
    ownership="key_group",
    partitions=8,
    states=(SEEN, StateEntry(name="Extra", kind="operator_list", value=Schema("int"))),
)
MANIFEST = SavepointManifest(
    savepoint_id="sp-1",
    app="app",
    checkpoint=7,
    created_at_ms=1000,
    created_by="penstock",
    max_parallelism=128,
    sources=(SourceEntry(uid="in", stage="s.in", topic="T", positions={0: 5, 11: 7}),),
    watermarks=(WatermarkEntry(stage="s.words", low=0, high=8, partitions=8, watermark_ms=0),),
    operators=(OPERATOR,),
    files=(FILE,),
)


def signed(document: Any) -> bytes:
    """A document that somebody else wrote, with a true sum."""
    document = {**document, "sha256": "0" * 64}
    text = json.dumps(document, separators=(",", ":"))
    text = text.replace('"BOTTOMLESS"', '{"kind":"list","items":[' * 100_000)
    return text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest()).encode()


def plain() -> Any:
    return msgspec.to_builtins(MANIFEST, str_keys=True)


def test_a_manifest_comes_back_and_reads_well():
    data = encode(MANIFEST)
    loaded = load(data, "s3://b/sp")
    assert re.fullmatch("[0-9a-f]{64}", loaded.sha256)
    assert msgspec.structs.replace(loaded, sha256=MANIFEST.sha256) == MANIFEST
    assert data.decode().count("\n") > 50
    assert list(json.loads(data))[-1] == "sha256"


def test_the_sum_is_as_the_format_says():
    """By somebody who has only the reference page."""
    text = encode(MANIFEST).decode()
    sha256 = json.loads(text)["sha256"]
    head, tail = text.rsplit(sha256, 1)
    assert hashlib.sha256((head + "0" * 64 + tail).encode()).hexdigest() == sha256


def test_a_stranger_may_write_one():
    assert load(signed(plain()), "w").operators == MANIFEST.operators


def nested(depth: int) -> Any:
    schema: Any = {"kind": "int"}
    for _ in range(depth):
        schema = {"kind": "list", "items": [schema]}
    return schema


def change(path: str, value: Any) -> Callable[[Any], Any]:
    def changed(document: Any) -> Any:
        *way, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
        at = document
        for step in way:
            at = at[step]
        at[last] = value
        return document

    return changed


def twice(name: str) -> Callable[[Any], Any]:
    return lambda document: {**document, name: document[name] * 2}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (change("files.0.path", "data/../../etc/passwd"), "not a path inside"),
        (change("files.0.path", "/etc/passwd"), "not a path inside"),
        (change("files.0.path", "manifests/x.parquet"), "not a path inside"),
        (change("files.0.path", "data/x%2e%2e/y"), "not a path inside"),
        (change("files.0.sha256", "0"), "wrong sum"),
        (change("files.0.rows", -1), "size out of range"),
        (change("files.0.rows", 2**70), "size out of range"),
        (change("files.0.operator", "other"), "belongs to no operator"),
        (change("files.0.state", "other"), "belongs to no operator"),
        (change("files.0.state", "Extra"), "key groups but no keys"),
        (change("files.0.key_group_min", None), "no range of key groups"),
        (change("files.0.key_group_max", 128), "key groups 3 to 128"),
        (change("files.0.key_group_min", 2), "bounds of other key groups"),
        (change("files.0.lower", {"key_group": 3}), "has bounds"),
        (change("files.0.lower", {"key_group": 3, "key": "zz"}), "not in hex"),
        (change("files.0.upper", {"key_group": 3, "key": ""}), "before its first"),
        (change("files.0.lower", {"key_group": True, "key": "a1"}), "int|has bounds"),
        (twice("files"), "names a file twice"),
        (twice("operators"), "is in it twice"),
        (twice("sources"), "stands in it twice"),
        (change("operators.0.uid", "../x"), "not a name"),
        (change("operators.0.partitions", -1), "size out of range"),
        (change("operators.0.states.1.name", "seen"), "is in it twice"),
        (change("operators.0.states.0.key", None), "must have a key"),
        (change("operators.0.states.0.kind", "pickle"), "pickle"),
        (change("operators.0.states.0.value", nested(33)), "more than 32 deep"),
        (change("operators.0.states.0.value", "BOTTOMLESS"), "ecursion|deep|nest"),
        (change("operators.0.states.0.value", {"kind": "list"}), "schema that is none"),
        (change("operators.0.states.0.kind", "map"), "is map state of int"),
        (change("operators.0.states.0.kind", "operator_broadcast"), "must have a key when keyed"),
        (change("sources.0.positions", {"0": -1}), "position out of range"),
        (change("sources.0.positions", {"x": 1}), "int"),
        (change("watermarks.0.high", 9), "wrong range"),
        (change("watermarks.0.watermark_ms", -(2**63)), "wrong range"),
        (change("max_parallelism", 0), "out of range"),
        (change("app", "a/b"), "not a name"),
    ],
)
def test_what_is_wrong_is_named(spoil: Callable[[Any], Any], reason: str):
    data = signed(spoil(plain()))
    with pytest.raises(CorruptedObject, match=f"(?s)s3://b/sp.*({reason}).*take the savepoint"):
        load(data, "s3://b/sp")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data.replace(b'"count"', b'"cnunt"'),
        lambda data: data + b"{}",
        lambda data: b"[" * 1_000_000,
        lambda data: data.replace(b'"rows": 1', b'"rows": 2'),
        lambda data: b"\x80\x04\x95" + data,
    ],
)
def test_a_damaged_document_is_named(spoil: Callable[[bytes], bytes]):
    with pytest.raises(CorruptedObject, match=r"file:///x/sp.*damaged"):
        load(spoil(encode(MANIFEST)), "file:///x/sp")


def test_another_version_or_hash_is_refused():
    with pytest.raises(ConfigurationError, match="format version 2, this penstock reads 1"):
        load(signed({**plain(), "format_version": 2, "operators": "of another shape"}), "w")
    with pytest.raises(ConfigurationError, match="murmur"):
        load(signed(change("hash.algorithm", "murmur")(plain())), "w")
