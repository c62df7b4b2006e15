"""The audits: plain counting that decides whether output is exactly once. They know no Kafka."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from ledger.model import Posting, Transfer
from wordcount.counter import Count

SHOWN = 5
"""Examples given of each kind of deviation."""


@dataclass
class Findings:
    """What an audit found: nothing, when the output is exactly once."""

    duplicates: int = 0
    lost: int = 0
    deviations: list[str] = field(default_factory=list)

    def add(self, what: str, examples: Iterable[object], total: int) -> None:
        """A deviation with some examples, unless there is none."""
        if total:
            shown = ", ".join(str(example) for example in islice(examples, SHOWN))
            more = ", …" if total > SHOWN else ""
            self.deviations.append(f"{what}: {total:,} ({shown}{more})")


class WordAudit:
    """Every (word, n) for n = 1..count exactly once, in order, and no other."""

    def __init__(self, expected: Counter[str]) -> None:
        self._expected = expected
        self.expected_records = expected.total()
        self._last: dict[str, int] = dict.fromkeys(expected, 0)
        self._odd: dict[str, Counter[int]] = {}

    def take(self, counts: Iterable[Count]) -> None:
        """Records of one partition, in order."""
        last = self._last
        for count in counts:
            word, n = count.word, count.n
            if n == last.get(word, -1) + 1:
                last[word] = n
            else:
                self._odd.setdefault(word, Counter())[n] += 1

    def finish(self) -> Findings:
        """What was found, once all records were taken."""
        found = Findings()
        twice: list[str] = []
        foreign: list[str] = []
        gone: list[str] = []
        unordered: list[str] = []
        for word, odd in self._odd.items():
            if word not in self._expected:
                foreign.append(repr(word))
                continue
            times = Counter(range(1, self._last[word] + 1)) + odd
            repeats = [n for n, often in times.items() if often > 1]
            twice += [f"({word!r}, {n}) {times[n]}x" for n in repeats]
            found.duplicates += sum(times[n] - 1 for n in repeats)
            beyond = [n for n in odd if not 1 <= n <= self._expected[word]]
            foreign += [f"({word!r}, {n})" for n in beyond]
            if not repeats and not beyond and times.total() == self._expected[word]:
                unordered.append(repr(word))
        for word, expected in self._expected.items():
            last, odd = self._last[word], self._odd.get(word, Counter())
            if last > expected:
                foreign += [f"({word!r}, {n})" for n in range(expected + 1, last + 1)]
            if last < expected and (
                missing := [n for n in range(last + 1, expected + 1) if n not in odd]
            ):
                gone += [f"({word!r}, {n})" for n in missing]
                found.lost += len(missing)
        found.add("words: counts that came more than once", twice, len(twice))
        found.add("words: counts that never came", gone, len(gone))
        found.add("words: counts that the text does not have", foreign, len(foreign))
        found.add("words: not in the order 1, 2, 3, …", unordered, len(unordered))
        return found


class LedgerAudit:
    """Every transfer debited once and credited once; running totals contiguous; the sum is zero."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self._numbers: dict[str, int] = {}
        self._debtors = array("i")
        self._creditors = array("i")
        self._amounts = array("q")
        for transfer in transfers:
            self._debtors.append(self._number(transfer.debtor))
            self._creditors.append(self._number(transfer.creditor))
            self._amounts.append(transfer.amount)
        self.expected_records = 2 * len(self._amounts)
        self._times = {side: bytearray(len(self._amounts)) for side in ("debit", "credit")}
        self._books: dict[tuple[str, str], tuple[int, int]] = {}
        self._sum = 0
        self._wrong: list[str] = []
        self._broken: list[str] = []

    def _number(self, account: str) -> int:
        return self._numbers.setdefault(account, len(self._numbers))

    def take(self, postings: Iterable[Posting]) -> None:
        """Records of one partition, in order."""
        books, numbers, amounts = self._books, self._numbers, self._amounts
        for posting in postings:
            side, identity, amount = posting.side, posting.transfer, posting.amount
            self._sum += amount
            if not 0 <= identity < len(amounts):
                self._wrong.append(f"transfer {identity} was never made")
                continue
            if side == "debit":
                account, expected = self._debtors[identity], -amounts[identity]
            else:
                account, expected = self._creditors[identity], amounts[identity]
            if amount != expected or numbers.get(posting.account) != account:
                self._wrong.append(
                    f"{side} of transfer {identity}: {amount} on {posting.account}, "
                    f"expected {expected}"
                )
            times = self._times[side]
            times[identity] = min(times[identity] + 1, 255)
            book = (posting.account, side)
            total, sequence = books.get(book, (0, 0))
            if posting.sequence != sequence + 1 or posting.total != total + amount:
                self._broken.append(
                    f"{side} side of {posting.account}: {posting.total} as number "
                    f"{posting.sequence} after {total} as number {sequence}"
                )
            books[book] = (posting.total, posting.sequence)

    def finish(self) -> Findings:
        """What was found, once all records were taken."""
        found = Findings()
        for side, times in self._times.items():
            twice = [identity for identity, often in enumerate(times) if often > 1]
            gone = [identity for identity, often in enumerate(times) if often == 0]
            found.duplicates += sum(times[identity] - 1 for identity in twice)
            found.lost += len(gone)
            found.add(f"ledger: transfers with more than one {side}", twice, len(twice))
            found.add(f"ledger: transfers without a {side}", gone, len(gone))
        found.add("ledger: postings of no transfer", self._wrong, len(self._wrong))
        found.add("ledger: running totals that do not follow", self._broken, len(self._broken))
        if self._sum:
            found.deviations.append(f"ledger: all postings sum up to {self._sum}, expected 0")
        return found
