"""A seeded generator of transfers: the same seed gives the same transfers."""

import random
from collections.abc import Iterator

from ledger.model import Transfer

ACCOUNTS = 10_000


def account_name(number: int) -> str:
    """The name of an account, like ``account-00042``."""
    return f"account-{number:05d}"


def generate(count: int, seed: int, accounts: int = ACCOUNTS) -> Iterator[Transfer]:
    """``count`` transfers between two different accounts each; ids count from 0."""
    names = [account_name(number) for number in range(accounts)]
    chance = random.Random(seed).random
    for identity in range(count):
        debtor = int(chance() * accounts)
        creditor = (debtor + 1 + int(chance() * (accounts - 1))) % accounts
        amount = 1 + int(chance() * 100_000)
        yield Transfer(identity, names[debtor], names[creditor], amount)
