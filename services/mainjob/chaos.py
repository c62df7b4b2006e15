"""What is done to the applications and when: a plan from a seed.

The input comes in portions, and each strike but the first releases the next one: so there always
is work in flight, and new output to wait for, however fast or slow the machine is. A strike waits
for a random part of its portion, and then for a random delay, so that it falls anywhere between two
checkpoints.
"""

import random
from dataclasses import dataclass
from typing import Literal

What = Literal["worker", "coordinator", "rescale"]


@dataclass(frozen=True)
class Strike:
    """SIGKILL to one process, or to all of them and a start at another parallelism."""

    what: What
    fraction: float
    """Part of the application's output that has to be there first."""
    delay_s: float
    releases: bool = True
    """The next portion of the input follows; not so after the first of two kills in a row."""

    def __str__(self) -> str:
        return f"{self.what} at {self.fraction:.0%} + {self.delay_s * 1000:.0f} ms"


def plan(chance: random.Random, *, kills: int, rescale: bool) -> list[Strike]:
    """Strikes of one application, in order.

    ``kills`` processes one by one, one of them the coordinator, and after one of the workers
    another one while the first is being recovered from; a rescale among them when wanted.
    """
    worker: list[What] = ["worker"] * (kills - 2)
    whats: list[What] = ["coordinator", *worker]
    chance.shuffle(whats)
    if rescale:
        whats.insert(chance.randrange(1, len(whats)), "rescale")
    part = 1 / (len(whats) + 1)
    strikes = [
        Strike(what, part * (number + 0.1 + 0.8 * chance.random()), chance.random() * 0.4)
        for number, what in enumerate(whats)
    ]
    twin = chance.choice([i for i, strike in enumerate(strikes) if strike.what == "worker"])
    again = Strike("worker", strikes[twin].fraction, 0.1 + chance.random() * 0.9)
    first = Strike("worker", strikes[twin].fraction, strikes[twin].delay_s, releases=False)
    return [*strikes[:twin], first, again, *strikes[twin + 1 :]]


def portions(strikes: list[Strike]) -> int:
    """Into how many portions the input is cut for these strikes."""
    return 1 + sum(strike.releases for strike in strikes)
