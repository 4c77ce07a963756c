"""What a format is: a class that says what it can do, and names the module that does it.

The module has

    recognise(path, head) -> bool       whether a file with this name and these first bytes may be of the format
    read(path, options) -> Draft        with `recognise`: what the file says (see `gradwire.traces.formats.draft`)
    write(trace, out, options) -> list[Path]    the new files

Readers take a file as it is: they name and count what they leave out, and raise TraceError rather than guess.
Writers say in their docstring what of a trace their format cannot hold.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from gradwire.scenarios.components import components

if TYPE_CHECKING:
    from gradwire.traces.formats.source import Progress


class Format:
    """Derive from it, and set what is declared here."""

    kind: ClassVar[str]
    """How people call it."""
    title: ClassVar[str]
    """What it is, for people."""
    module: ClassVar[str]
    """Where `recognise`, `read` and `write` are."""
    reads: ClassVar[bool] = True
    """Whether the module has `recognise` and `read`."""
    writes: ClassVar[bool] = False
    """Whether the module has `write`."""
    ranks: ClassVar[bool] = False
    """Whether the graphs of all ranks can be had: from a file for each, or worked out from one rank's."""
    offered: ClassVar[int] = 0
    """A file is offered to those with smaller numbers first: to those that know their own from what is like it."""

    @classmethod
    def code(cls) -> ModuleType:
        """The module."""
        return importlib.import_module(cls.module)


@dataclass(frozen=True)
class ReadOptions:
    """`dtype` is that of gradients of which a file gives only bytes. `ranks`: the graphs of all ranks are wanted."""

    dtype: str = "float32"
    progress: Progress | None = None
    ranks: bool = False
    repair: bool = False
    """Leave out control dependencies that close circles in a graph."""
    notes: Counter[str] = field(default_factory=Counter)
    """What was mended or ignored in the file's bytes, counted by readers."""


@dataclass(frozen=True)
class WriteOptions:
    """`iterations` are indices into the trace, `ranks` how many workers the job is written for."""

    iterations: Sequence[int]
    ranks: int = 1


def importers() -> list[str]:
    """Names of the formats that can be read."""
    return [kind for kind, each in components("trace_format").items() if each.reads]


def exporters() -> list[str]:
    """Names of the formats that can be written."""
    return [kind for kind, each in components("trace_format").items() if each.writes]
