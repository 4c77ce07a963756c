"""Declares the contract (`Format`) and options of classes that read or write other tools' trace files, and lists them.

    recognise(path, head) -> bool       True if a file with this name and these first bytes may be of the format
    read(path, options) -> Draft        with `recognise`: the content (see `gradwire.traces.formats.draft`)
    write(trace, out, options) -> list[Path]    the new files

Readers name and count what they leave out, and raise TraceError rather than guess. Writers state in their docstring
what their format cannot hold. Formats are listed without NumPy: their modules import it at its first use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gradwire.scenarios.loading.registry import components

if TYPE_CHECKING:
    from gradwire.traces.formats.source import Progress


class Format:
    """Base class of trace formats; set the attributes declared here."""

    kind: ClassVar[str]
    """Name for users."""
    title: ClassVar[str]
    """Description for users."""
    ranks: ClassVar[bool] = False
    """True if it gives the graphs of all ranks, from one file each or computed from one rank's."""
    offered: ClassVar[int] = 0
    """Order in which formats are tried, smaller numbers first: the more specific ones."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of readers: `dtype` of gradients given in bytes only; `ranks` to read the graphs of all ranks."""

    dtype: str = "float32"
    progress: Progress | None = None
    ranks: bool = False
    repair: bool = False
    """Leave out control dependencies that close cycles in a graph."""
    notes: Counter[str] = field(default_factory=Counter)
    """Repaired or ignored parts of the file, counted by readers."""


@dataclass(frozen=True)
class WriteOptions:
    """Options of writers: `iterations` are indices into the trace, `ranks` the number of workers of the job."""

    iterations: Sequence[int]
    ranks: int = 1


def importers() -> list[str]:
    """Return the names of the formats that can be read."""
    return [kind for kind, component in components("trace_format").items() if hasattr(component, "read")]


def exporters() -> list[str]:
    """Return the names of the formats that can be written."""
    return [kind for kind, component in components("trace_format").items() if hasattr(component, "write")]
