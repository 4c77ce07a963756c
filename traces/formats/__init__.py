"""Traces from and to other tools' formats: one file per format, registered here by one line.

A format is a module with `TITLE` (what people call it) and at least one of

    recognise(path, head) -> bool       whether a file with this name and these first bytes may be of the format
    read(path, options) -> Draft        with `recognise`: what the file says (see `gradwire.traces.formats.draft`)
    write(trace, out, options) -> list[Path]    the new files

Readers take a file as it is: they name and count what they leave out, and raise TraceError rather than guess.
Writers say in their docstring what of a trace their format cannot hold.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import instance_of, path_of, whole_number
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    from gradwire.traces.formats.magnitudes import Model
    from gradwire.traces.formats.source import Progress

FORMATS: dict[str, str] = {  # in the order in which a file is offered to them
    "perfetto": "gradwire.traces.formats.perfetto",
    "kineto": "gradwire.traces.formats.kineto",
    "pipedream": "gradwire.traces.formats.pipedream",
    "simai": "gradwire.traces.formats.simai",
    "csv": "gradwire.traces.formats.tensor_csv",
    "chakra": "gradwire.traces.formats.chakra",
}

MOST_RANKS = 1 << 16
"""Workers that a job can be exported for; Chakra has a file for each."""

_FITTED: dict[str, Model] = {}  # models fitted to bundled traces, which do not change


@dataclass(frozen=True)
class ReadOptions:
    """`dtype` is that of gradients of which a file gives only bytes."""

    dtype: str = "float32"
    progress: Progress | None = None


@dataclass(frozen=True)
class WriteOptions:
    """`iterations` are indices into the trace, `ranks` how many workers the job is written for."""

    iterations: Sequence[int]
    ranks: int = 1


def importers() -> list[str]:
    """Names of the formats that can be read."""
    return [name for name in FORMATS if hasattr(_module(name), "read")]


def exporters() -> list[str]:
    """Names of the formats that can be written."""
    return [name for name in FORMATS if hasattr(_module(name), "write")]


def import_trace(
    path: str | Path,
    *,
    format: str = "auto",
    name: str | None = None,
    seed: int = 1,
    dtype: str = "float32",
    fit_to: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The trace that a foreign file describes; its manifest says what was understood and what left out.

    `format` is one of `importers()` or "auto", by the file's first bytes. Magnitudes are drawn with `seed`
    from the model of `gradwire.traces.formats.magnitudes`, fitted to the measured trace `fit_to` (a bundled one by
    default). `dtype` is that of gradients of which the file gives only bytes. TraceError for a file that is
    missing, empty, damaged or of no known format, and for one that describes no gradients.
    """
    from gradwire.traces.formats.draft import finish
    from gradwire.traces.formats.magnitudes import FITTED_TO
    from gradwire.traces.formats.source import head
    from gradwire.traces.trace import ELEMENT_BYTES

    path = path_of(path, "import_trace(path)", "a file", TraceError)
    if dtype not in ELEMENT_BYTES:
        raise TraceError(f"dtype {dtype!r}", "import", ", ".join(ELEMENT_BYTES))
    if format not in ("auto", *importers()):
        raise TraceError(f"format {format!r}", "import", ", ".join(["auto", *importers()]))
    begin = head(path)
    if format == "auto":
        format = _recognised(path, begin)
    model = _fitted(fit_to or FITTED_TO)
    draft = _module(format).read(path, ReadOptions(dtype, progress))
    return finish(draft, path, name or path.name.split(".")[0], model, seed)


def export_trace(
    trace: Trace, out: str | Path, *, format: str, iterations: Sequence[int] | None = None, ranks: int = 1
) -> list[Path]:
    """Write `trace` in one of `exporters()`; answers with the files, which must not exist yet.

    `iterations` defaults to the first one. TraceError for a format, an iteration or a number of ranks that
    does not exist, and where a file cannot be written; then none is left behind.
    """
    trace = instance_of(trace, Trace, "export_trace(trace)", "a Trace", TraceError)
    place = path_of(out, "export_trace(out)", "a new file", TraceError)
    ranks = whole_number(ranks, "export_trace(ranks)", 1, TraceError)
    if format not in exporters():
        raise TraceError(f"format {format!r}", "export", ", ".join(exporters()))
    where = "export_trace(iterations)"
    chosen = [0] if iterations is None else [whole_number(each, where, 0, TraceError) for each in iterations]
    for index in chosen:
        if not 0 <= index < len(trace.iterations):
            raise TraceError(f"iteration {index}", trace.name, f"0 to {len(trace.iterations) - 1}")
    if not chosen or not 1 <= ranks <= MOST_RANKS:
        expected = f"at least one of each, and at most {MOST_RANKS} ranks"
        raise TraceError(f"{len(chosen)} iterations, {ranks} ranks", "export", expected)
    files: list[Path] = _module(format).write(trace, place, WriteOptions(chosen, ranks))
    return files


def _fitted(name: str) -> Model:
    from gradwire.traces.formats.magnitudes import fit
    from gradwire.traces.trace import bundled_traces, load_trace

    if name not in bundled_traces():
        return fit(load_trace(name))
    if name not in _FITTED:
        _FITTED[name] = fit(load_trace(name))
    return _FITTED[name]


def _recognised(path: Path, begin: bytes) -> str:
    for name in importers():
        if _module(name).recognise(path, begin):
            return name
    titles = ", ".join(f"{name} ({_module(name).TITLE})" for name in importers())
    raise TraceError("is of no format that gradwire knows", str(path), titles)


def _module(name: str) -> ModuleType:
    return importlib.import_module(FORMATS[name])
