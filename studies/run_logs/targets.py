"""Parses and checks the logs to write, such as "tensorboard:DIR" or "wandb:PROJECT", and opens them for one run.

A log is secondary: an error while it is written is reported once, and the run goes on without it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ResultError, ScenarioError, ScenarioNote, import_extra
from gradwire.scenarios.validation.argument_checks import wrong_type_error
from gradwire.studies.run_logs.logged_run import LoggedRun

LogFunction = Callable[[str, int, Mapping[str, float]], object]
"""Function called with (name of the run, step, values by name)."""
Logs = str | LogFunction | Sequence[str | LogFunction]
KINDS = ("tensorboard", "wandb")
"""Kinds of logs, named like the package that writes them."""
EXPECTED = "tensorboard, tensorboard:DIR, wandb or wandb:PROJECT"


class RunLog(Protocol):
    """The log of one run."""

    def write(self, step: int, values: Mapping[str, float], clock_s: float) -> None:
        """Log values of a step; `clock_s`: simulated time."""
        ...

    def close(self, summary: Mapping[str, float], step: int, complete: bool) -> None:
        """Log final values and end the log; `complete`: True if the run has ended."""
        ...


@dataclass(frozen=True)
class LogTarget:
    """A kind of log, and its folder or project; empty for the default."""

    kind: str
    place: str = ""

    def open(self, run: LoggedRun, events_dir: Path) -> RunLog:
        """Open the log of a run. `events_dir`: folder of its TensorBoard files."""
        if self.kind == "tensorboard":
            from gradwire.studies.run_logs.tensorboard_log import TensorBoardLog

            return TensorBoardLog(run, events_dir)
        from gradwire.studies.run_logs.wandb_log import WandbLog

        return WandbLog(run, self.place)


def check_logs(given: Any, where: str) -> list[LogTarget | LogFunction]:
    """Return the logs to write. Raises ScenarioError for other values, MissingExtraError if a package is missing, and
    ResultError if a folder cannot be written."""
    if isinstance(given, str) or callable(given):
        given = [given]
    if not isinstance(given, Sequence):
        raise wrong_type_error(given, where, f"a list of {EXPECTED}, or functions", ScenarioError)
    targets: list[LogTarget | LogFunction] = []
    for each in given:
        target = each if callable(each) else _target(each, where)
        if target not in targets:
            targets.append(target)
    return targets


def _target(text: Any, where: str) -> LogTarget:
    if not isinstance(text, str):
        raise wrong_type_error(text, where, f"{EXPECTED}, or a function", ScenarioError)
    kind, colon, place = text.partition(":")
    if kind not in KINDS or (colon and not place):
        raise ScenarioError(f'is no log: "{text}"', where, EXPECTED + nearest(kind, KINDS))
    if not os.environ.get("WANDB_MODE"):  # offline; W&B's client reads this when it is imported
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import_extra(kind, "logging")
    if kind == "tensorboard" and place:
        try:
            existing = next(path for path in (Path(place), *Path(place).absolute().parents) if path.exists())
            is_writable = existing.is_dir() and os.access(existing, os.W_OK)
        except OSError:  # the name is too long
            is_writable = False
        if not is_writable:
            raise ResultError("cannot be written", f"{where} {text}", "a folder that can be created or written")
    return LogTarget(kind, place)


class RunLogs:
    """All logs of one run.

    broken : kinds of logs that have failed, which are not written; the first error of a kind is noted and adds it.
    """

    def __init__(
        self,
        targets: Sequence[LogTarget | LogFunction],
        run: LoggedRun,
        events_dir: Callable[[LogTarget], Path],
        broken: set[str] | None = None,
    ) -> None:
        self.run, self.broken = run, set() if broken is None else broken
        self._functions = [target for target in targets if not isinstance(target, LogTarget)]
        self._logs: dict[str, RunLog] = {}
        for target in targets:
            if isinstance(target, LogTarget) and target.kind not in self.broken:
                with guarded(target.kind, run.name, self.broken):
                    self._logs[target.kind] = target.open(run, events_dir(target))

    @property
    def any(self) -> bool:
        """True if anything is logged."""
        return bool(self._functions or self._logs)

    def write(self, step: int, values: Mapping[str, float], clock_s: float = 0.0) -> None:
        """Log values of a step in all logs."""
        for kind, log in self._logs.items():
            if kind in self.broken:
                continue
            with guarded(kind, self.run.name, self.broken):
                log.write(step, values, clock_s)
        for function in self._functions:
            function(self.run.name, step, values)

    def close(self, summary: Mapping[str, float], step: int, complete: bool = True) -> None:
        """Log final values and end all logs."""
        for kind, log in self._logs.items():
            with guarded(kind, self.run.name, self.broken):
                log.close(summary, step, complete)


@contextmanager
def guarded(kind: str, name: str, broken: set[str]) -> Iterator[None]:
    """Turn the first error of a kind of log into a note, and ignore later ones."""
    try:
        yield
    except Exception as error:  # whatever a library raises: results matter more than their log
        if kind not in broken:
            broken.add(kind)
            what = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"{kind}: the log of {name} is incomplete: {what}", ScenarioNote, stacklevel=4)
