"""The main job from its input to its verdict, once servers are there."""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from ledger.generator import generate
from ledger.model import Posting
from penstock_stack import Stack
from wordcount.counter import Count
from wordcount.lines import standard_library_lines
from wordcount.tokenizer import words_of

from mainjob.application import Application
from mainjob.audit import LedgerAudit, WordAudit
from mainjob.chaos import Strike, plan, portions
from mainjob.failure import JobFailed
from mainjob.reader import CommittedReader
from mainjob.report import Report
from mainjob.topics import create_topics, fill
from mainjob.transactions import open_transactions

SERVICES = Path(__file__).parents[1]
PROGRESS_S = 5.0
"""How often a line is printed where there is no terminal."""


@dataclass(frozen=True)
class Size:
    """How much is done."""

    lines: int | None = None
    """Lines of text; all of them when None."""
    transfers: int = 1_000_000
    kills_each: int = 4
    """Processes killed of each application."""
    stall_s: float = 90.0
    interval_ms: int = 200


FULL = Size()
QUICK = Size(lines=60_000, transfers=100_000, stall_s=60.0)


@dataclass
class Course:
    """One application on its way: what is still to be done to it."""

    app: Application
    reader: CommittedReader[Any]
    strikes: list[Strike]
    source: str
    portions: Iterator[Iterable[bytes]]
    """The input, cut so that each gives as much output as the others."""
    written: list["Future[None]"] = field(default_factory=list)
    parallelism: int = 2
    due: float | None = None
    kills: int = 0
    rescales: int = 0

    @property
    def is_done(self) -> bool:
        return self.reader.records >= self.reader.audit.expected_records


class MainJob:
    """Both applications at once, their readers, and what is done to them."""

    def __init__(self, stack: Stack, folder: Path, size: Size, seed: int) -> None:
        self._stack = stack
        self._folder = folder
        self._size = size
        self._chance = random.Random(seed)
        self._seed = seed
        self._courses: list[Course] = []
        self._began = time.monotonic()
        self._told_at = 0.0
        self._writer = ThreadPoolExecutor(1, "input")

    def run(self) -> Report:
        """Do it all; deviations are in the report, JobFailed when there is no verdict."""
        try:
            self._prepare()
            self._process()
            return self._verify()
        finally:
            for course in self._courses:
                course.app.kill_all()
                course.reader.close()
            self._writer.shutdown(cancel_futures=True)

    # --- input

    def _prepare(self) -> None:
        bootstrap, size = self._stack.bootstrap, self._size
        create_topics(bootstrap, sources=["lines", "transfers"], sinks=["counts", "postings"])
        lines = list(islice(standard_library_lines(), size.lines))
        # Plain counting of the same text: what the counts must come to.
        words = WordAudit(Counter(word for line in lines for word in words_of(line)))
        money = LedgerAudit(generate(size.transfers, self._seed))
        self._say(
            f"{len(lines):,} lines of Python's standard library, {words.expected_records:,} words; "
            f"{size.transfers:,} transfers, {money.expected_records:,} postings"
        )
        text = self._application("wordcount", ["tokenizer", "counter"])
        strikes = self._plan(text, rescale=True)
        reader = CommittedReader(bootstrap, "counts", Count, words)
        parts = _by_words(lines, words.expected_records, portions(strikes))
        self._courses.append(Course(text, reader, strikes, "lines", parts))
        book = self._application("ledger", ["transfers", "accounts"])
        strikes = self._plan(book, rescale=False)
        ledger_reader = CommittedReader(bootstrap, "postings", Posting, money)
        encoded = map(msgspec.json.Encoder().encode, generate(size.transfers, self._seed))
        portion = size.transfers // portions(strikes) + 1
        shares = (islice(encoded, portion) for _ in range(portions(strikes)))
        self._courses.append(Course(book, ledger_reader, strikes, "transfers", shares))

    def _application(self, name: str, files: Iterable[str]) -> Application:
        paths = [SERVICES / name / f"{file}.py" for file in files]
        return Application(name, paths, self._stack, self._folder, self._size.interval_ms)

    def _plan(self, app: Application, *, rescale: bool) -> list[Strike]:
        strikes = plan(self._chance, kills=self._size.kills_each, rescale=rescale)
        self._say(f"plan for {app.name}: {', '.join(map(str, strikes))}")
        return strikes

    def _release(self, course: Course) -> None:
        """Write the next portion of the input, in the background."""
        bootstrap, topic = self._stack.bootstrap, course.source
        portion = next(course.portions)
        course.written.append(self._writer.submit(fill, bootstrap, topic, portion))

    # --- processing under fire

    def _process(self) -> None:
        for course in self._courses:
            course.reader.last_at = time.time()
            course.app.start(course.parallelism)
            self._release(course)
        while not all(course.is_done for course in self._courses):
            for course in self._courses:
                self._tend(course)
            self._progress()
            time.sleep(0.01)
        self._progress(last=True)

    def _tend(self, course: Course) -> None:
        course.app.look()
        course.reader.check()
        for future in course.written:
            if future.done():
                future.result()  # raises what kept it from being written
        if course.is_done:
            return
        if (silent_s := time.time() - course.reader.last_at) > self._size.stall_s:
            raise JobFailed(
                f"{course.app.name}: no new output for {silent_s:.0f} s at "
                f"{course.reader.records:,} of {course.reader.audit.expected_records:,} records. "
                f"The end of its log:\n{course.app.log_tail()}"
            )
        if not course.strikes or course.reader.fraction < course.strikes[0].fraction:
            return
        now = time.monotonic()
        if course.due is None:
            course.due = now + course.strikes[0].delay_s
        if now >= course.due and self._strike(course, course.strikes[0]):
            if course.strikes.pop(0).releases:
                self._release(course)
            course.due = None

    def _strike(self, course: Course, strike: Strike) -> bool:
        """Do it; False when there is nothing to kill at this instant."""
        if strike.what == "rescale":
            before, course.parallelism = course.parallelism, course.parallelism + 1
            course.app.kill_all()
            course.reader.last_at = time.time()
            course.app.start(course.parallelism)
            course.rescales += 1
            self._say(f"rescaled {course.app.name} from {before} to {course.parallelism} (kill -9)")
            return True
        killed = course.app.kill_one(strike.what, self._chance)
        if killed is None:
            return False
        course.reader.killed()
        course.kills += 1
        self._say(f"killed {killed.role} {killed.name} of {killed.app} (pid {killed.pid})")
        return True

    # --- the verdict

    def _verify(self) -> Report:
        report = Report()
        for course in self._courses:
            course.app.stop()
        self._say("stopped both applications; reading to the end")
        for course in self._courses:
            prefix = f"penstock.{course.app.name}!"
            left = open_transactions(self._stack.bootstrap, prefix)
            report.open_transactions += len(left)
            report.deviations += [f"transaction left open: {each}" for each in left]
            if not left:
                course.reader.read_to_end(self._size.stall_s)
            course.reader.close()
            findings = course.reader.audit.finish()
            report.deviations += findings.deviations
            report.duplicates += findings.duplicates
            report.lost += findings.lost
            report.records += course.reader.records
            report.kills += course.kills
            report.rescales += course.rescales
            report.recoveries_s += course.reader.recoveries_s
            report.take_checkpoints(course.app.events)
            if course.strikes:
                undone = ", ".join(map(str, course.strikes))
                report.deviations.append(f"{course.app.name} was done before: {undone}")
            if survivors := course.app.left_behind():
                report.deviations.append(f"processes left behind: {sorted(survivors)}")
        readers = [course.reader for course in self._courses]
        took_s = max(each.last_at for each in readers) - min(each.first_at for each in readers)
        report.records_per_s = report.records / max(took_s, 0.001)
        return report

    # --- what people see

    def _say(self, line: str) -> None:
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{clear}{time.monotonic() - self._began:6.1f} s  {line}", flush=True)

    def _progress(self, *, last: bool = False) -> None:
        now = time.monotonic()
        live = sys.stdout.isatty()
        if not last and now - self._told_at < (0.2 if live else PROGRESS_S):
            return
        self._told_at = now
        parts = []
        for course in self._courses:
            completed = sum(
                event["event"] == "checkpoint" and event["status"] == "completed"
                for event in course.app.events
            )
            state = "recovering" if course.reader.is_waiting else f"{completed} checkpoints"
            parts.append(
                f"{course.app.name} {course.reader.records:,} records "
                f"({course.reader.fraction:.0%}), {state}, {course.kills} kills"
            )
        line = " | ".join(parts)
        if live and not last:
            print(f"\r\x1b[K{now - self._began:6.1f} s  {line}", end="", flush=True)
        else:
            self._say(line)


def _by_words(lines: list[str], words: int, parts: int) -> Iterator[list[bytes]]:
    """The lines in ``parts`` portions with as many words each as the others."""
    portion: list[bytes] = []
    seen, given = 0, 1
    for line in lines:
        portion.append(line.encode())
        seen += len(words_of(line))
        if given < parts and seen >= words * given / parts:
            yield portion
            portion, given = [], given + 1
    yield portion
