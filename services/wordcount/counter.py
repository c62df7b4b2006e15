"""Counter: counts the words that come over the edge ``words``, and tells each increment."""

import msgspec
import penstock as ps


class Count(msgspec.Struct, frozen=True):
    """``word`` was seen for the ``n``-th time."""

    word: str
    n: int


class Counting(ps.KeyedProcess):
    """One number per word."""

    seen = ps.ValueState(int, 0)

    def process(self, word: str, ctx: ps.Context) -> None:
        n = self.seen.get() + 1
        self.seen.set(n)
        ctx.emit(Count(word, n))


service = ps.Service("counter", app="wordcount")

(
    service.from_edge("words", value=str, key=str)
    .process("counting", Counting, returns=Count)
    .sink("counts", topic="counts", key=lambda count: count.word)
)
