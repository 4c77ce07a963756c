"""What workers of the pool are asked for in tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gradwire.scenarios.errors import ScenarioError


def square(number: int) -> int:
    return number * number


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gone(code: int) -> None:
    os._exit(code)


def refused(where: str) -> None:
    raise ScenarioError("is wrong", where)


def odd() -> None:
    class Odd(Exception):
        """Cannot be pickled, as nobody finds it."""

    raise Odd("odd")


def process() -> int:
    return os.getpid()


def noted(folder: Path, name: str, seconds: float) -> None:
    (folder / f"{name}.begun").write_text(str(time.monotonic_ns()))
    time.sleep(seconds)
    (folder / f"{name}.ended").write_text(str(time.monotonic_ns()))


def slow(folder: Path) -> None:
    (folder / "process").write_text(str(os.getpid()))
    time.sleep(600)
