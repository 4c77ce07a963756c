"""What `python -m tests.soak` does: the sources of random cases side by side, counted, and what failed kept."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak import ANSWERS, Case

SOURCES = ("scenarios", "uncompiled", "readers", "results", "agents", "signals")
PATIENCE_S = 120  # of processor time: a case that takes more hangs. The clock on the wall is no judge beside other work
WAIT_S = 10 * PATIENCE_S  # on the wall, for a case that waits for something for good
MOST_MEMORY = 2 * 10**9  # bytes that a worker may have taken in all
TOLD_EVERY = 2.0  # seconds between two reports of a worker


class Hang(BaseException):
    """A case takes too long. Not an Exception, so that nothing takes it for its own."""


@dataclass
class Tally:
    """What one source has come to."""

    answers: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    most_memory: int = 0
    """bytes that a worker had in use at most"""
    coverage: Any = None
    """`tests.soak.coverage.Coverage` of a source that counts it, else None"""

    def add(self, other: Tally) -> None:
        """Take in what another worker has seen."""
        self.answers += other.answers
        self.failures += other.failures
        self.seconds += other.seconds
        self.most_memory = max(self.most_memory, other.most_memory)
        if self.coverage is None:
            self.coverage = other.coverage
        elif other.coverage is not None:
            self.coverage.add(other.coverage)

    def line(self, name: str) -> str:
        """For people."""
        tried = sum(self.answers.values()) + len(self.failures)
        parts = [f"{self.answers[answer]:,} {answer}" for answer in ANSWERS if self.answers[answer]]
        rate = tried / self.seconds if self.seconds else 0.0
        return (
            f"{name}: {tried:,} cases: {', '.join(parts) or 'none'}; {len(self.failures)} failed; "
            f"{rate:.1f} a second and process, at most {self.most_memory / 1e6:.0f} MB"
        )


def attempt(case: Case, tally: Tally, patience_s: float = PATIENCE_S) -> None:
    """Run one case and count it."""
    label, thunk = case
    begin, before = time.perf_counter(), peak_memory()
    signal.setitimer(signal.ITIMER_PROF, patience_s)
    signal.alarm(WAIT_S)
    try:
        answer = thunk()
        if answer not in ANSWERS:
            raise AssertionError(f"answered {answer!r}")
        tally.answers[answer] += 1
    except KeyboardInterrupt:
        raise
    except Hang:
        tally.failures.append((label, f"took more than {patience_s} s of a processor, or {WAIT_S} s"))
    except BaseException:
        tally.failures.append((label, traceback.format_exc(limit=-12)))
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        tally.seconds += time.perf_counter() - begin
    tally.most_memory = peak_memory()
    if tally.most_memory > max(MOST_MEMORY, before):
        tally.failures.append((label, f"took {tally.most_memory / 1e9:.1f} GB of memory"))


def peak_memory() -> int:
    """Return the most bytes that this process ever had in use."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _alarm(*_: Any) -> None:
    raise Hang


def worker(name: str, seed: int, until: float, told: Any) -> None:
    """Run cases of one source until the time is up, SIGTERM comes or the parent is gone; report now and then."""
    parent = os.getppid()
    requests: list[int] = []  # to end
    signal.signal(signal.SIGTERM, lambda number, _: requests.append(number))
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGPROF, _alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    source = importlib.import_module(f"tests.soak.{name}")
    coverage = source.new_coverage() if hasattr(source, "new_coverage") else None
    cases: Iterator[Case] = source.cases(seed) if coverage is None else source.cases(seed, coverage)
    patience_s = getattr(source, "PATIENCE_S", PATIENCE_S)
    tally, last = Tally(), time.monotonic()
    while time.time() < until and not requests and os.getppid() == parent:
        attempt(next(cases), tally, patience_s)
        if tally.most_memory > MOST_MEMORY:
            break  # a fresh process follows, in which later cases can be measured
        if time.monotonic() - last > TOLD_EVERY:
            told.put((name, tally))
            tally, last = Tally(), time.monotonic()
    tally.coverage = coverage
    told.put((name, tally))


def run(names: Sequence[str], minutes: float, seed: int, jobs: int, log: str) -> dict[str, Tally]:
    """Run sources in `jobs` processes; a process goes from one source to the next with the seeds.

    SIGINT and SIGTERM end the run early: workers finish the case that they are at, and everything is counted.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until = time.time() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    totals = {name: Tally() for name in names}
    workers: dict[int, Any] = {}
    count = 0
    last = time.monotonic()
    try:
        while time.time() < until or any(process.is_alive() for process in workers.values()):
            for place in range(jobs):
                process = workers.get(place)
                if time.time() < until and (process is None or not process.is_alive()):
                    name = names[count % len(names)]
                    turn = min(until, time.time() + (60 * minutes if len(names) <= jobs else 300))
                    arguments = (name, seed * 1_000_003 + count, turn, told)
                    workers[place] = context.Process(target=worker, args=arguments, daemon=True)
                    workers[place].start()
                    count += 1
            _listen(told, totals, log, 1.0)
            if time.monotonic() - last > 30:
                last = time.monotonic()
                print("\n".join(totals[name].line(name) for name in names), flush=True)
            if time.time() > until + PATIENCE_S + 60:
                break
    except KeyboardInterrupt:
        print("interrupted: every process finishes its case", flush=True)
        for process in workers.values():
            process.terminate()
        latest = time.time() + PATIENCE_S
        while time.time() < latest and any(process.is_alive() for process in workers.values()):
            _listen(told, totals, log, 0.2)
    _listen(told, totals, log, 0.5)
    for process in workers.values():
        if process.is_alive():
            process.kill()
    return totals


def _listen(told: Any, totals: dict[str, Tally], log: str, seconds: float) -> None:
    while True:
        try:
            name, tally = told.get(timeout=seconds)
        except queue.Empty:
            return
        totals[name].add(tally)
        for label, why in tally.failures:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{label}\n{why}\n\n")
            print(f"FAILED {label}: {why.strip().splitlines()[-1][:200]}", flush=True)
