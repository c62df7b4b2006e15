"""What a Deploy means for one worker: slots, upstreams in plan order, lanes (L10, L20)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.control import Deploy
from penstock.failure import ConfigurationError
from penstock.graph import (
    EdgeInputSpec,
    EdgeOutputSpec,
    ServiceSpec,
    SourceSpec,
    StageSpec,
)
from penstock.ids import Attempt, SubtaskId, owned_partitions
from penstock.runtime.plan import (
    check_parallelism,
    edge_input,
    lanes,
    service_of,
    slot_of,
    upstreams,
)

OUT = EdgeOutputSpec(name="words", key="str", value="str", partitions=16)


def writing(service: str) -> ServiceSpec:
    source = SourceSpec(uid="in", topic="in", value="str")
    stage = StageSpec(name=f"{service}.in", input=source, operators=(), edges=(OUT,), sinks=())
    return ServiceSpec(name=service, app="app", stages=(stage,))


def reading(service: str) -> ServiceSpec:
    edge = EdgeInputSpec(uid="words", key="str", value="str", partitions=16)
    stage = StageSpec(name=f"{service}.words", input=edge, operators=(), edges=(), sinks=())
    return ServiceSpec(name=service, app="app", stages=(stage,))


def deployed(services: tuple[ServiceSpec, ...], **parallelism: int) -> Deploy:
    return Deploy(
        attempt=Attempt(1), checkpoint=None, manifest=None, services=services,
        parallelism=parallelism, edge_starts={}, pool=4,
        assignment={"b/0": "worker-x", "b/1": "worker-y"},
    )  # fmt: skip


def test_upstreams_are_numbered_in_plan_order() -> None:
    deploy = deployed((writing("a"), reading("b"), writing("c")), a=2, b=1, c=1)
    assert upstreams(deploy, "words") == [
        SubtaskId("a.in", 0), SubtaskId("a.in", 1), SubtaskId("c.in", 0),
    ]  # fmt: skip
    assert upstreams(deploy, "others") == []


def test_slots() -> None:
    deploy = deployed((writing("a"), reading("b")), a=1, b=2)
    assert slot_of(deploy, "worker-y") == ("b", 1)
    assert slot_of(deploy, "worker-z") is None
    assert service_of(deploy, "b").name == "b"


def test_an_edge_input_is_told_from_a_source() -> None:
    assert edge_input(writing("a").stages[0]) is None
    found = edge_input(reading("b").stages[0])
    assert found is not None
    assert found.uid == "words"


@pytest.mark.parametrize(("parallelism", "fits"), [(1, True), (16, True), (17, False)])
def test_every_subtask_owns_a_partition_of_its_edge(parallelism: int, fits: bool) -> None:
    services = (writing("a"), reading("b"))
    if fits:
        check_parallelism(services, {"a": 99, "b": parallelism})
        return
    with pytest.raises(ConfigurationError, match=r"'b' is to run as 17 subtasks.*16 partitions"):
        check_parallelism(services, {"a": 99, "b": parallelism})


@given(st.integers(1, 16))
def test_a_reader_finds_all_its_buckets_in_its_own_lanes(parallelism: int) -> None:
    """L20: whatever the parallelism, a bucket travels to the subtask that owns it."""
    deploy = deployed((writing("a"), reading("b")), a=1, b=parallelism)
    carried_by = lanes(deploy, "words", 16)
    for index in range(parallelism):
        owned = owned_partitions(16, parallelism, index)
        assert {carried_by[bucket] for bucket in owned} == {owned.start}


def test_readers_of_different_parallelism_get_every_bucket_by_itself() -> None:
    deploy = deployed((writing("a"), reading("b"), reading("c")), a=1, b=2, c=3)
    assert lanes(deploy, "words", 16) == list(range(16))
