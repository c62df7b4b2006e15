"""What the report on the ledger and its variant must say, by plain counting.

It shares no code with the report, and of the variant only the fee rule.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ledger.model import Transfer

from ledger_ab.fee import FEES, fee_of

PERCENT = (1, 5, 25, 50, 75, 95, 99)
TOP = 10


@dataclass
class Expectation:
    """The figures of both runs, counted transfer by transfer."""

    transfers: int = 0
    """Of the replayed range."""
    fees: list[int] = field(default_factory=list)
    fees_of: Counter[str] = field(default_factory=Counter)
    """Cents that an account paid."""
    charged: Counter[str] = field(default_factory=Counter)
    """Transfers for which an account paid."""
    debtors: set[str] = field(default_factory=set)
    creditors: set[str] = field(default_factory=set)
    """Accounts with a book, those of before the savepoint included."""
    replayed: set[str] = field(default_factory=set)
    """Accounts with a posting in the replayed range."""

    def before(self, transfers: Iterable[Transfer]) -> None:
        """Transfers that the ledger booked before the savepoint: without fees, in both."""
        for transfer in transfers:
            self.debtors.add(transfer.debtor)
            self.creditors.add(transfer.creditor)

    def replay(self, transfers: Iterable[Transfer]) -> None:
        """Transfers that both replayed."""
        for transfer in transfers:
            self.transfers += 1
            self.debtors.add(transfer.debtor)
            self.creditors.add(transfer.creditor)
            self.replayed |= {transfer.debtor, transfer.creditor}
            fee = fee_of(transfer.amount)
            if fee > 0:
                self.fees.append(fee)
                self.fees_of[transfer.debtor] += fee
                self.charged[transfer.debtor] += 1

    def figures(self) -> dict[str, dict[str, Any]]:
        """Output or state -> figure -> what it must be."""
        charged, rows = len(self.fees), 2 * self.transfers
        return {
            "postings": {
                "rows_a": rows,
                "rows_b": rows + charged,
                "equal": rows - charged,
                "different": charged,
                "only_a": 0,
                "only_b": charged,
                "repeated": 0,
                "columns": (
                    {"amount": _distribution([-fee for fee in self.fees])} if charged else {}
                ),
                "keys": len(self.replayed) + (1 if charged else 0),
                "keys_unequal": len(self.charged) + (1 if charged else 0),
                "top": {"amount": _top({key: -paid for key, paid in self.fees_of.items()})},
                "most": _top(self.charged | (Counter({FEES: charged}) if charged else Counter())),
            },
            "debit/book": _state(
                len(self.debtors), [-paid for paid in self.fees_of.values()], only_b=0
            )
            | {"top": {"total": _top({key: -paid for key, paid in self.fees_of.items()})}},
            "credit/book": _state(len(self.creditors), [], only_b=1 if charged else 0)
            | {"top": {}},
        }


def _state(accounts: int, deltas: list[int], *, only_b: int) -> dict[str, Any]:
    return {
        "rows_a": accounts,
        "rows_b": accounts + only_b,
        "equal": accounts - len(deltas),
        "different": len(deltas),
        "only_a": 0,
        "only_b": only_b,
        "repeated": 0,
        "columns": {"total": _distribution(deltas)} if deltas else {},
        "keys": accounts + only_b,
        "keys_unequal": len(deltas) + only_b,
    }


def _distribution(values: list[int]) -> dict[str, Any]:
    """Count, sum, mean, extremes and quantiles by the nearest rank."""
    ordered = sorted(values)
    ranks = {f"p{p}": ordered[max(-(-p * len(ordered) // 100), 1) - 1] for p in PERCENT}
    mean = float(Fraction(sum(ordered), len(ordered)))
    ends = {"min": ordered[0], "max": ordered[-1]}
    return {"rows": len(ordered), "sum": sum(ordered), "mean": mean, **ends, **ranks}


def _top(amounts: dict[str, int]) -> list[tuple[str, int]]:
    """The keys furthest from zero, by name where they are equally far."""
    return sorted(amounts.items(), key=lambda pair: (-abs(pair[1]), pair[0]))[:TOP]
