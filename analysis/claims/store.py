"""Store: the Results of a reproduction, each in a folder named by its run's key.

A Result appears complete or not at all, so what is there after a kill -9 can be used. One that cannot be read, or is of
another format, is moved out of the way and run again. A training fills its folder while it runs, and one that is not
over is gone on with.

Measuring a Result of many messages takes minutes, so its figures are kept beside it. They count as long as the files of
the Result are those that were measured, and the sources those that measured.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from gradwire.analysis import sources
from gradwire.analysis.claims.lost_packets import lost_figures
from gradwire.analysis.claims.measures import figures, learned_figures
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.learned import CHECKPOINT, SUMMARY, Learned
from gradwire.scenarios.result import Result


class Store:
    """Results below `folder`/runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def place(self, key: str) -> Path:
        """Where the Result of a run is."""
        return self.folder / key

    def figures(self, key: str) -> dict[str, float] | None:
        """The measures of a kept Result; None if there is none that can be used, and what is left of it is gone."""
        place = self.place(key)
        if not place.exists():
            return None
        try:
            return self._learned(place) if (place / SUMMARY).exists() else self._measured(place)
        except ResultError:
            shutil.rmtree(place)
            _beside(place).unlink(missing_ok=True)
            return None

    def _measured(self, place: Path) -> dict[str, float]:
        beside = _beside(place)
        files = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in sorted(place.glob("*"))]
        of = hashlib.sha256(f"{sources.measuring()} {files}".encode()).hexdigest()
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = parse_json(beside.read_text(encoding="utf-8"))
            if kept["of"] == of:
                return {str(name): float(value) for name, value in kept["figures"].items()}
        found = figures(Result.read(place))
        with suppress(OSError):  # measured again next time
            beside.write_text(json.dumps({"of": of, "figures": found}), encoding="utf-8")
        return found

    def share(self, key: str) -> float:
        """How much of a run is done, 0 to 1, of which nothing is touched; what is damaged counts as nothing."""
        place = self.place(key)
        try:
            if not (place / SUMMARY).exists():
                Result.read(place)
                return 1.0
            summary = parse_json((place / SUMMARY).read_text(encoding="utf-8"))
            done, steps = int(summary["steps_done"]), int(summary["steps"])
        except (ResultError, OSError, ValueError, KeyError, TypeError):
            return 0.0
        return min(1.0, done / steps) if steps > 0 and (done == steps or (place / CHECKPOINT).exists()) else 0.0

    def _learned(self, place: Path) -> dict[str, float] | None:
        training = Learned.read(place)
        if training.summary["steps_done"] < training.summary["steps"]:
            return None
        (place / CHECKPOINT).unlink(missing_ok=True)  # there is nothing left to go on with
        return learned_figures(training) | lost_figures(place)


def _beside(place: Path) -> Path:
    """Where the figures of a Result are kept."""
    return place.with_name(f"{place.name}.figures.json")
