"""A pytest plugin for trials: a test that takes far longer than it used to ends the process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

SECONDS = "GRADWIRE_TEST_SECONDS"
"""Names the environment variable with a file: the seconds that each test may take, by name."""
TIMED_OUT = 90
"""Exit status of a process in which a test took too long."""
STDOUT = os.dup(1)  # pytest takes the other one while a test runs


class Limit:
    """The plugin."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        signal.signal(signal.SIGPROF, self._end)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        signal.setitimer(signal.ITIMER_PROF, self._seconds.get(item.nodeid, 0))
        self._name = item.nodeid
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _end(self, number: int, frame: FrameType | None) -> None:
        os.write(STDOUT, f"\nTIMED OUT {self._name}\n".encode())
        os._exit(TIMED_OUT)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Limit(json.loads(Path(os.environ[SECONDS]).read_text(encoding="utf-8"))))
