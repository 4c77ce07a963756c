"""Reach: the lines of protocols and of the engine's core that each test runs, recorded by a pytest plugin.

The engine runs as plain Python meanwhile (`tests/support/engines.py`), and the sources have marks (`hits`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from tests.mutation.hits import take
from tests.mutation.mutants import Mutant

OUT = "GRADWIRE_TEST_REACH"
"""Names the environment variable with the file that the plugin writes."""
STATEMENTS = "GRADWIRE_TEST_STATEMENTS"
"""Names the environment variable with the file that it reads: file and line of each marked statement."""
MOST_S = 8
"""A test that takes longer is of no use for trials: it fails, and is not recorded."""


@dataclass
class Reach:
    """The tests with their seconds, and the numbers of those that reach a line, by file and line."""

    tests: list[tuple[str, float]]
    lines: dict[str, dict[int, list[int]]]

    @classmethod
    def read(cls, path: Path) -> Reach:
        """Return what the plugin has written."""
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = {
            file: {int(line): tests for line, tests in by_line.items()} for file, by_line in found["lines"].items()
        }
        return cls([(name, seconds) for name, seconds in found["tests"]], lines)

    def tests_of(self, mutant: Mutant, most_s: float) -> list[tuple[str, float]]:
        """Return tests that reach a mutant, `most_s` seconds of them in all. One case of each test function comes first,
        the fastest of these in front, then a second case of each."""
        by_line = self.lines.get(mutant.path, {})
        numbers = {number for line in range(mutant.first, mutant.last + 1) for number in by_line.get(line, ())}
        cases: dict[str, int] = defaultdict(int)
        ordered = []
        for name, seconds in sorted((self.tests[number] for number in numbers), key=lambda test: (test[1], test[0])):
            function = name.split("[")[0]
            ordered.append((cases[function], seconds, name))
            cases[function] += 1
        chosen, spent = [], 0.0
        for _, seconds, name in sorted(ordered):
            if spent + seconds <= most_s:
                chosen.append((name, seconds))
                spent += seconds
        return chosen


class Recorder:
    """The plugin. `lines`: file and line of each marked statement."""

    def __init__(self, lines: list[tuple[str, int]], out: Path) -> None:
        self._lines, self._out = lines, out
        self._has_passed = True
        self._tests: list[tuple[str, float]] = []
        self._by_line: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        signal.signal(signal.SIGPROF, _end)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        take()
        self._has_passed = True
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_S, 1)  # and again: an example that failed is tried once more
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._note(item.nodeid, time.process_time() - started)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_passed &= report.passed

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps({"tests": self._tests, "lines": self._by_line}), encoding="utf-8")

    def _note(self, name: str, seconds: float) -> None:
        """Note the lines that a test has reached, unless it was skipped or has failed."""
        reached = take()
        if reached and self._has_passed:
            for number in reached:
                path, line = self._lines[number]
                self._by_line[path][line].append(len(self._tests))
            self._tests.append((name, round(seconds, 3)))


def _end(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"took more than {MOST_S} s")


def pytest_configure(config: pytest.Config) -> None:
    lines = json.loads(Path(os.environ[STATEMENTS]).read_text(encoding="utf-8"))
    config.pluginmanager.register(Recorder(lines, Path(os.environ[OUT])))
