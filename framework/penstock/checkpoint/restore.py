"""What a restore does about the transactions of its checkpoint (L14-L16). Pure.

Invariants (tests cite them):
- R1 (L15) a transaction that is neither committed by us nor proven by its witness is lost: never
  skipped.
- R2 everything lost that is newer than the retained checkpoint before: fall back to that one, for
  nothing that it would write again is visible.
- R3 some of the newer lost, some committed: refuse, naming each, unless the loss is accepted by a
  person.
- R4 (L16) only ids of attempts before the one being restored are fenced: a recovery that sleeps and
  wakes after a newer attempt was deployed cannot touch that one's transactions.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from penstock.control import Committable
from penstock.ids import Attempt, CheckpointId, attempt_of


class Proceed(msgspec.Struct, frozen=True):
    """Every transaction of the checkpoint is committed: deploy from it."""


class FallBack(msgspec.Struct, frozen=True):
    """Nothing of the checkpoint's output became visible: restore ``checkpoint`` instead."""

    checkpoint: CheckpointId
    lost: tuple[Committable, ...]


class Refuse(msgspec.Struct, frozen=True):
    """Output is lost for good; only a person may go on (``--accept-loss``)."""

    lost: tuple[Committable, ...]
    committed: tuple[Committable, ...]


Verdict: TypeAlias = Proceed | FallBack | Refuse


def is_proven(transaction: Committable, witnesses: dict[str, CheckpointId]) -> bool:
    """Whether the newest committed witness of the id reaches the transaction's checkpoint (L15)."""
    return witnesses.get(transaction.transactional_id, CheckpointId(-1)) >= transaction.checkpoint


def verdict(
    transactions: tuple[Committable, ...],
    committed: frozenset[Committable],
    witnesses: dict[str, CheckpointId],
    older: CheckpointId | None,
    *,
    accept_loss: bool = False,
) -> Verdict:
    """Decide a restore from what EndTxn answered and what the witnesses prove.

    ``older`` is the retained complete checkpoint before this one, if any.
    """
    proven = tuple(t for t in transactions if t in committed or is_proven(t, witnesses))
    lost = tuple(t for t in transactions if t not in proven)
    if not lost or accept_loss:
        return Proceed()
    if older is not None and not any(t.checkpoint > older for t in proven):
        return FallBack(older, lost)
    return Refuse(lost, proven)


def fenceable(transactional_ids: Iterable[str], attempt: Attempt) -> set[str]:
    """The ids that a recovery for ``attempt`` may initialise: those of the attempts before (R4)."""
    return {name for name in transactional_ids if attempt_of(name) < attempt}


def loss_report(refusal: Refuse) -> str:
    """What is lost, for a person: topics, partitions, counts, and the remedy."""
    lines = [
        f"  {t.records} records of checkpoint {t.checkpoint} for topic {t.topic!r} partitions "
        f"{list(t.partitions)} (transaction {t.transactional_id})"
        for t in refusal.lost
    ]
    return (
        f"{len(refusal.lost)} of {len(refusal.lost) + len(refusal.committed)} transactions of the "
        "checkpoint are lost: Kafka has neither an open transaction nor a proof of commit.\n"
        + "\n".join(lines)
        + "\nNothing was skipped. The usual cause is an outage longer than the broker's "
        "transaction.max.timeout.ms. Start with --accept-loss to go on without these records; or "
        "have them made again, and what came after the older checkpoint twice: penstock savepoint "
        "convert APP --checkpoint N, then penstock run --from-savepoint with --accept-loss."
    )
