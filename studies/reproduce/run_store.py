"""`RunStore` finds the Results of a reproduction by run key, stores their measured figures, and removes unusable
Results.

A Result appears complete or not at all, so what exists after a kill -9 is usable. An unreadable one, or one of another
format, is removed and run again. A training run fills its folder gradually, and is resumed if incomplete.

Measuring a Result of many messages takes minutes, so its figures are stored beside it. They are valid while the
Result's files and the measuring sources are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path

from gradwire.analysis import source_digests
from gradwire.result_store.result import Result
from gradwire.result_store.training_result import CHECKPOINT, SUMMARY, TrainingResult
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import parse_json
from gradwire.studies.reproduce.lost_packets import lost_figures
from gradwire.studies.reproduce.measures import figures, training_figures


class RunStore:
    """Results below `folder`/runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def place(self, key: str) -> Path:
        """Return the folder of a run's Result."""
        return self.folder / key

    def figures(self, key: str) -> dict[str, float] | None:
        """Return the measures of a stored Result; remove it and return None if it is unusable."""
        folder = self.place(key)
        if not folder.exists():
            return None
        try:
            return self._training_result(folder) if (folder / SUMMARY).exists() else self._measured(folder)
        except ResultError:
            shutil.rmtree(folder)
            _figures_file(folder).unlink(missing_ok=True)
            return None

    def _measured(self, folder: Path) -> dict[str, float]:
        figures_file = _figures_file(folder)
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.glob("*"))]
        fingerprint = hashlib.sha256(f"{source_digests.measuring_digest()} {files}".encode()).hexdigest()
        with suppress(OSError, ValueError, KeyError, TypeError):
            stored = parse_json(figures_file.read_text(encoding="utf-8"))
            if stored["of"] == fingerprint:
                return {str(name): float(value) for name, value in stored["figures"].items()}
        measured = figures(Result.read(folder))
        with suppress(OSError):  # measured again next time
            figures_file.write_text(json.dumps({"of": fingerprint, "figures": measured}), encoding="utf-8")
        return measured

    def share(self, key: str) -> float:
        """Return the completed fraction of a run, 0 to 1, without changing anything; a damaged one counts as 0."""
        folder = self.place(key)
        try:
            if not (folder / SUMMARY).exists():
                Result.read(folder)
                return 1.0
            summary = parse_json((folder / SUMMARY).read_text(encoding="utf-8"))
            done, steps = int(summary["steps_done"]), int(summary["steps"])
        except (ResultError, OSError, ValueError, KeyError, TypeError):
            return 0.0
        return min(1.0, done / steps) if steps > 0 and (done == steps or (folder / CHECKPOINT).exists()) else 0.0

    def _training_result(self, folder: Path) -> dict[str, float] | None:
        training = TrainingResult.read(folder)
        if training.summary["steps_done"] < training.summary["steps"]:
            return None
        (folder / CHECKPOINT).unlink(missing_ok=True)  # complete, nothing left to resume
        return training_figures(training) | lost_figures(folder)


def _figures_file(folder: Path) -> Path:
    """Return the file of a Result's figures."""
    return folder.with_name(f"{folder.name}.figures.json")
