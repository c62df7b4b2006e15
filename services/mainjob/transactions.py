"""Which transactions are open, asked from the broker and not from the framework."""

from typing import Any

from kafka.admin import KafkaAdminClient

FINISHED = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}


def open_transactions(bootstrap: str, prefix: str) -> list[str]:
    """Transactional ids under ``prefix`` whose transaction is not finished, with its state."""
    make: Any = KafkaAdminClient  # it carries no types
    client = make(bootstrap_servers=bootstrap)
    try:
        by_broker = client.list_transactions()
    finally:
        client.close()
    return sorted(
        f"{listing.transactional_id} is {state}"
        for listings in by_broker.values()
        for listing in listings
        if listing.transactional_id.startswith(prefix)
        and (state := getattr(listing.state, "value", str(listing.state))) not in FINISHED
    )
