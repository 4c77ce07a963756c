"""Reads rows, commands with their completion times, from what htsim's `validate.py` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradwire.scenarios.errors import GradwireError

FINISHED = re.compile(r"finished at ([\d.]+)")
FIRST_AND_LAST = re.compile(r"FCT Spread\s+([\d.]+)\s*->\s*([\d.]+)")


@dataclass(frozen=True)
class HtsimRow:
    """An experiment of htsim. `first_us`, `last_us` : completion of the first and of the last message, microseconds."""

    title: str
    command: str
    first_us: float
    last_us: float


def read_rows(path: Path) -> Iterator[HtsimRow]:
    """Yield the experiments that a file of printed output shows complete.

    Raises
    ------
    GradwireError
        If the file cannot be read, or shows no experiment.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise GradwireError(f"cannot be read: {error.strerror}", str(path), "output of htsim's validate.py") from error
    title = command = ""
    found = False
    for line in text.splitlines():
        if line.startswith("Experiment:"):
            title = line.removeprefix("Experiment:").strip()
        elif line.startswith("Running "):
            command = line.removeprefix("Running ").strip()
        elif command and (match := FIRST_AND_LAST.search(line)):
            yield HtsimRow(title, command, float(match[1]), float(match[2]))
            found, command = True, ""
    if not found:
        raise GradwireError("shows no experiment", str(path), '"Running ./htsim_uec ..." and its "FCT Spread"')
