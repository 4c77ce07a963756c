"""`rows_of` reads the lines of a topology file as words; `refuse_listed` raises the first of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.files import require_regular_file
from gradwire.topology.cables import MAX_LISTED, refuse_network


def rows_of(path: Path, wanted: str) -> list[tuple[int, list[str]]]:
    """Return (line number from 1, words) of the lines that are not empty; text after # is skipped.

    Raises ScenarioError if the file cannot be read, or is not UTF-8 text; a byte-order mark may come first.
    """
    try:
        text = require_regular_file(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError("there is no such file", where=str(path), expected=wanted) from None
    except UnicodeDecodeError:
        raise ScenarioError("is not UTF-8 text", where=str(path), expected=wanted) from None
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error}", where=str(path), expected=wanted) from None
    rows = [(number, line.split("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    return [row for row in rows if row[1]]


def refuse_listed(mistakes: Sequence[Mistake], name: str) -> None:
    """Raise ScenarioError with the first MAX_LISTED mistakes of a file, and the number of the others, if any."""
    listed = list(mistakes[:MAX_LISTED])
    if len(mistakes) > MAX_LISTED:
        listed.append(Mistake(name, f"{len(mistakes) - MAX_LISTED} more lines are wrong"))
    refuse_network(listed)
