"""The demo's verifier must itself be able to find fault."""

from collections import Counter
from collections.abc import Callable

import pytest
from ledger.generator import generate
from ledger.model import Book, Posting, Transfer
from mainjob.audit import Findings, LedgerAudit, WordAudit
from wordcount.counter import Count

TEXT = ["to", "be", "or", "not", "to", "be", "to"]


def counts() -> list[Count]:
    seen: Counter[str] = Counter()
    result = []
    for word in TEXT:
        seen[word] += 1
        result.append(Count(word, seen[word]))
    return result


def audit_words(records: list[Count]) -> Findings:
    audit = WordAudit(Counter(TEXT))
    for start in range(0, len(records), 3):  # in several batches, as they come
        audit.take(records[start : start + 3])
    return audit.finish()


def test_words_exactly_once():
    findings = audit_words(counts())
    assert findings.deviations == []
    assert (findings.duplicates, findings.lost) == (0, 0)


def test_words_may_come_from_partitions_in_any_mixture():
    mixed = sorted(counts(), key=lambda count: count.word)
    assert audit_words(mixed).deviations == []


@pytest.mark.parametrize("index", range(len(TEXT)))
def test_a_count_twice(index: int):
    records = counts()
    records.insert(index, records[index])
    findings = audit_words(records)
    assert findings.duplicates == 1
    assert findings.lost == 0
    assert "came more than once" in findings.deviations[0]
    assert f"({records[index].word!r}, {records[index].n}) 2x" in findings.deviations[0]


def test_a_whole_replay():
    findings = audit_words(counts() + counts())
    assert findings.duplicates == len(TEXT)


@pytest.mark.parametrize("index", range(len(TEXT)))
def test_a_count_lost(index: int):
    records = counts()
    gone = records.pop(index)
    findings = audit_words(records)
    assert findings.lost == 1
    assert findings.duplicates == 0
    assert findings.deviations == [
        f"words: counts that never came: 1 (({gone.word!r}, {gone.n}))",
    ]


def test_lost_increments_in_the_state_show_as_lost_and_twice():
    # A counter that was restored too far back says 2 again and never says 3.
    records = [Count("to", 2) if count == Count("to", 3) else count for count in counts()]
    findings = audit_words(records)
    assert (findings.duplicates, findings.lost) == (1, 1)


def test_counts_out_of_order():
    records = counts()
    records.sort(key=lambda count: -count.n)
    findings = audit_words(records)
    assert (findings.duplicates, findings.lost) == (0, 0)
    assert findings.deviations == ["words: not in the order 1, 2, 3, …: 2 ('to', 'be')"]


@pytest.mark.parametrize("foreign", [Count("question", 1), Count("to", 4), Count("to", 0)])
def test_counts_that_the_text_does_not_have(foreign: Count):
    findings = audit_words([*counts(), foreign])
    assert findings.deviations
    assert "that the text does not have" in findings.deviations[0]


def test_nothing_at_all():
    assert audit_words([]).lost == len(TEXT)


def postings(transfers: list[Transfer]) -> list[Posting]:
    books: dict[tuple[str, str], Book] = {}
    result = []
    for transfer in transfers:
        for account, side, amount in (
            (transfer.debtor, "debit", -transfer.amount),
            (transfer.creditor, "credit", transfer.amount),
        ):
            posting = books.get((account, side), Book()).post(transfer, account, side, amount)
            books[account, side] = Book.after(posting)
            result.append(posting)
    return result


TRANSFERS = list(generate(200, seed=7, accounts=5))


def audit_ledger(change: Callable[[list[Posting]], object]) -> Findings:
    records = postings(TRANSFERS)
    change(records)
    audit = LedgerAudit(iter(TRANSFERS))
    audit.take(records[:100])
    audit.take(records[100:])
    return audit.finish()


def test_ledger_exactly_once():
    findings = audit_ledger(len)  # changes nothing
    assert findings.deviations == []
    assert (findings.duplicates, findings.lost) == (0, 0)


def test_a_posting_twice():
    findings = audit_ledger(lambda records: records.insert(51, records[50]))
    assert (findings.duplicates, findings.lost) == (1, 0)
    named = " ".join(findings.deviations)
    assert "more than one debit: 1 (25)" in named
    assert "running totals that do not follow" in named
    assert "expected 0" in named


def test_a_posting_lost():
    findings = audit_ledger(lambda records: records.pop(51))
    assert (findings.duplicates, findings.lost) == (0, 1)
    assert "without a credit: 1 (25)" in " ".join(findings.deviations)


def test_postings_out_of_order():
    def swap(records: list[Posting]) -> None:
        first = next(i for i, p in enumerate(records) if p.side == "credit")
        again = (p for p in records[first + 1 :] if p.account == records[first].account)
        second = records.index(next(p for p in again if p.side == "credit"))
        records[first], records[second] = records[second], records[first]

    findings = audit_ledger(swap)
    assert (findings.duplicates, findings.lost) == (0, 0)
    assert [name.partition(":")[2].partition(":")[0] for name in findings.deviations] == [
        " running totals that do not follow"
    ]


def test_a_debit_on_a_wrong_account():
    def misdirect(records: list[Posting]) -> None:
        wrong = next(p for p in TRANSFERS if p.debtor != records[0].account).debtor
        kept = {name: getattr(records[0], name) for name in Posting.__struct_fields__}
        records[0] = Posting(**{**kept, "account": wrong})

    assert "postings of no transfer" in " ".join(audit_ledger(misdirect).deviations)


def test_a_posting_of_a_transfer_that_was_never_made():
    stranger = Posting(999, "account-00001", "debit", 0, 0, 1)
    findings = audit_ledger(lambda records: records.append(stranger))
    assert "transfer 999 was never made" in " ".join(findings.deviations)
