"""The recovery of one restore: decide every transaction, fence every id, measure every edge
(L14-L16, decision 0006).

Runs in a background thread of the leading coordinator, after its Restore record is in the log.
Crashing anywhere in it and running it again gives the same result (L12): EndTxn and InitProducerId
are idempotent in effect.
"""

from penstock.checkpoint import restore
from penstock.checkpoint.coordinator import Recover, Recovered, RecoveryFailed
from penstock.control import Committable
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.graph import ServiceSpec
from penstock.ids import Attempt, transactional_prefix
from penstock.runtime.faultpoint import reached
from penstock.runtime.ports import Kafka, Outcome, Recovery, SnapshotStore
from penstock.snapshot import manifest as manifests


def recover(
    kafka: Kafka,
    store: SnapshotStore,
    app: str,
    asked: Recover,
    *,
    accept_loss: bool = False,
) -> Recovered | RecoveryFailed:
    """Perform ``asked``; a person's problems come back as a fatal RecoveryFailed."""
    try:
        return _recover(kafka, store, app, asked, accept_loss=accept_loss)
    except (ConfigurationError, CorruptedObject) as error:
        return RecoveryFailed(asked.attempt, str(error), fatal=True)
    except Exception as error:
        return RecoveryFailed(asked.attempt, f"{type(error).__name__}: {error}")


def sweep(kafka: Kafka, app: str, attempt: Attempt) -> None:
    """Fence what subtasks of attempts before ``attempt`` opened after their recovery (L16)."""
    recovery = kafka.recovery(app)
    try:
        found = recovery.open_transactions(transactional_prefix(app))
        recovery.fence(restore.fenceable(found, attempt))
    finally:
        recovery.close()


def edge_partitions(services: tuple[ServiceSpec, ...]) -> dict[str, int]:
    """Partition count of every edge that a graph writes."""
    return {
        edge.name: edge.partitions
        for service in services
        for stage in service.stages
        for edge in stage.edges
    }


def _recover(
    kafka: Kafka,
    store: SnapshotStore,
    app: str,
    asked: Recover,
    *,
    accept_loss: bool,
) -> Recovered | RecoveryFailed:
    transactions = _transactions(store, asked, accept_loss=accept_loss)
    recovery = kafka.recovery(app)
    try:
        failed = _decide(
            recovery,
            app,
            asked,
            transactions=transactions,
            accept_loss=accept_loss,
        )
    finally:
        recovery.close()
    if failed is not None:
        return failed
    return Recovered(asked.attempt, asked.checkpoint)


def _transactions(
    store: SnapshotStore, asked: Recover, *, accept_loss: bool
) -> tuple[Committable, ...]:
    """What the checkpoint has to be decided; CorruptedObject when nobody can tell."""
    if asked.manifest is None:
        return ()
    try:
        loaded = manifests.load(store.get(asked.manifest), asked.manifest)
    except CorruptedObject as error:
        if not asked.importing:
            raise
        if accept_loss:
            return ()
        raise CorruptedObject(
            f"{str(error).rstrip('.')}; and with --accept-loss, for nobody can tell now which "
            f"output of checkpoint {asked.checkpoint} was still to be committed"
        ) from error
    return tuple(t for part in loaded.subtasks for t in part.transactions)


def _decide(
    recovery: Recovery,
    app: str,
    asked: Recover,
    *,
    transactions: tuple[Committable, ...],
    accept_loss: bool,
) -> RecoveryFailed | None:
    # A producer that was used again is never listed by the checkpoint that is restored first (S3);
    # one that is fallen back to comes after a recovery that fenced, so that a late commit of a
    # listed epoch is refused and its witness speaks for it.
    committed = frozenset(t for t in transactions if _committed(recovery, t))
    known = recovery.transactional_ids(transactional_prefix(app))
    recovery.fence(restore.fenceable(known, asked.attempt))
    witnesses = recovery.witnesses() if len(committed) < len(transactions) else {}
    verdict = restore.verdict(
        transactions, committed, witnesses, asked.older, accept_loss=accept_loss
    )
    match verdict:
        case restore.FallBack(checkpoint, lost):
            reason = (
                f"all {len(lost)} transactions of checkpoint {asked.checkpoint} are lost, and so "
                f"nothing of its output is visible: falling back to checkpoint {checkpoint}"
            )
            return RecoveryFailed(asked.attempt, reason, fall_back=checkpoint)
        case restore.Refuse():
            return RecoveryFailed(asked.attempt, restore.loss_report(verdict), fatal=True)
    return None


def _committed(recovery: Recovery, transaction: Committable) -> bool:
    outcome = recovery.commit(transaction)
    reached("a14")
    return outcome is Outcome.COMMITTED


def edge_starts(kafka: Kafka, app: str, services: tuple[ServiceSpec, ...]) -> dict[str, list[int]]:
    """Create or check every edge topic and read its log ends (L10).

    Called after Restore is in the log and before Deploy: every frame of the new attempt comes
    later.
    """
    starts = {}
    for name, partitions in edge_partitions(services).items():
        kafka.ensure_edge(app, name, partitions)
        starts[name] = kafka.end_positions(f"{app}.edge.{name}")
    return starts
