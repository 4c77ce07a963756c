"""Traces from and to other tools' formats: what people call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gradwire.scenarios.components import components
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import instance_of, path_of, whole_number
from gradwire.traces.formats.base import ReadOptions, WriteOptions, exporters, importers
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    from gradwire.traces.formats.magnitudes import Model
    from gradwire.traces.formats.source import Progress

MOST_RANKS = 1 << 16
"""Workers that a job can be exported for; Chakra has a file for each."""

_FITTED: dict[str, Model] = {}  # models fitted to bundled traces, which do not change


def import_trace(
    path: str | Path,
    *,
    format: str = "auto",
    name: str | None = None,
    seed: int = 1,
    dtype: str = "float32",
    fit_to: str | None = None,
    ranks: bool = False,
    repair: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """The trace that a foreign file describes; its manifest says what was understood and what left out.

    `format` is one of `importers()` or "auto", by the file's first bytes. Magnitudes are drawn with `seed`
    from the model of `gradwire.traces.formats.magnitudes`, fitted to the measured trace `fit_to` (a bundled one by
    default). `dtype` is that of gradients of which the file gives only bytes. With `ranks` the trace has the graphs of
    all ranks besides, from the files beside this one or worked out from it, to be played as they are. With `repair`
    control dependencies that close circles are left out of a Chakra graph, and counted. TraceError for a file that is
    missing, empty, damaged or of no known format, and for one that describes no gradients.
    """
    from gradwire.traces.formats.draft import finish
    from gradwire.traces.formats.magnitudes import FITTED_TO
    from gradwire.traces.formats.source import head
    from gradwire.traces.parts import ELEMENT_BYTES

    path = path_of(path, "import_trace(path)", "a file", TraceError)
    if dtype not in ELEMENT_BYTES:
        raise TraceError(f"dtype {dtype!r}", "import", ", ".join(ELEMENT_BYTES))
    if format not in ("auto", *importers()):
        raise TraceError(f"format {format!r}", "import", ", ".join(["auto", *importers()]))
    begin = head(path)
    if format == "auto":
        format = _recognised(path, begin)
    if ranks and not components("trace_format")[format].ranks:
        having = ", ".join(name for name, each in components("trace_format").items() if each.ranks)
        raise TraceError(f"format {format} has no graphs of ranks", str(path), f"a file of {having}, or without ranks")
    model = _fitted(fit_to or FITTED_TO)
    options = ReadOptions(dtype, progress, ranks, repair)
    draft = _code(format).read(path, options)
    draft.doubtful.update(options.notes)
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
    files: list[Path] = _code(format).write(trace, place, WriteOptions(chosen, ranks))
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
    readable = [components("trace_format")[name] for name in importers()]
    for each in sorted(readable, key=lambda each: each.offered):
        if each.code().recognise(path, begin):
            return str(each.kind)
    titles = ", ".join(f"{each.kind} ({each.title})" for each in readable)
    raise TraceError("is of no format that gradwire knows", str(path), titles)


def _code(name: str) -> ModuleType:
    found: ModuleType = components("trace_format")[name].code()
    return found
