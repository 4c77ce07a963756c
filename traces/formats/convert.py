"""Entry points for import and export of traces in other tools' formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer, require_path
from gradwire.traces.formats.base import ReadOptions, WriteOptions, exporters, importers
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    from gradwire.traces.formats.magnitudes import MagnitudeModel
    from gradwire.traces.formats.source import Progress

MAX_RANKS = 1 << 16
"""Maximum number of workers in an export; Chakra has a file for each."""

_FITTED: dict[str, MagnitudeModel] = {}  # cached models of bundled traces


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
    """Import a file of another tool as a trace; its manifest lists what was understood and what left out.

    `format` is one of `importers()` or "auto", by the file's first bytes. Magnitudes are drawn with `seed` from the
    model of `gradwire.traces.formats.magnitudes`, fitted to the measured trace `fit_to` (by default a bundled one).
    `dtype` applies to gradients given in bytes only. With `ranks` the trace also has the graphs of all ranks, from the
    files beside this one or computed from it, for replay as they are. With `repair`, control dependencies that close
    cycles are left out of a Chakra graph, and counted. TraceError for a file that is missing, empty, damaged or of an
    unknown format, or without gradients.
    """
    from gradwire.traces.formats.draft import draft_to_trace
    from gradwire.traces.formats.magnitudes import FITTED_TO
    from gradwire.traces.formats.source import head
    from gradwire.traces.parts import ELEMENT_BYTES

    path = require_path(path, "import_trace(path)", "a file", TraceError)
    if dtype not in ELEMENT_BYTES:
        raise TraceError(f"dtype {dtype!r}", "import", ", ".join(ELEMENT_BYTES))
    if format not in ("auto", *importers()):
        raise TraceError(f"format {format!r}", "import", ", ".join(["auto", *importers()]))
    begin = head(path)
    if format == "auto":
        format = _recognised(path, begin)
    if ranks and not components("trace_format")[format].ranks:
        supported = ", ".join(name for name, component in components("trace_format").items() if component.ranks)
        raise TraceError(
            f"format {format} has no graphs of ranks", str(path), f"a file of {supported}, or without ranks"
        )
    model = _fitted(fit_to or FITTED_TO)
    options = ReadOptions(dtype, progress, ranks, repair)
    draft = _code(format).read(path, options)
    draft.doubtful.update(options.notes)
    return draft_to_trace(draft, path, name or path.name.split(".")[0], model, seed)


def export_trace(
    trace: Trace, out: str | Path, *, format: str, iterations: Sequence[int] | None = None, ranks: int = 1
) -> list[Path]:
    """Write `trace` in one of `exporters()` and return the files, which must not exist yet. `iterations` defaults to
    the first one. TraceError for an unknown format, iteration or number of ranks, and if a file cannot be written; then
    none is left behind."""
    trace = require_instance(trace, Trace, "export_trace(trace)", "a Trace", TraceError)
    path = require_path(out, "export_trace(out)", "a new file", TraceError)
    ranks = require_integer(ranks, "export_trace(ranks)", 1, TraceError)
    if format not in exporters():
        raise TraceError(f"format {format!r}", "export", ", ".join(exporters()))
    where = "export_trace(iterations)"
    chosen = [0] if iterations is None else [require_integer(index, where, 0, TraceError) for index in iterations]
    for index in chosen:
        if not 0 <= index < len(trace.iterations):
            raise TraceError(f"iteration {index}", trace.name, f"0 to {len(trace.iterations) - 1}")
    if not chosen or not 1 <= ranks <= MAX_RANKS:
        expected = f"at least one of each, and at most {MAX_RANKS} ranks"
        raise TraceError(f"{len(chosen)} iterations, {ranks} ranks", "export", expected)
    files: list[Path] = _code(format).write(trace, path, WriteOptions(chosen, ranks))
    return files


def _fitted(name: str) -> MagnitudeModel:
    from gradwire.traces.formats.magnitudes import fit_model
    from gradwire.traces.trace import bundled_traces, load_trace

    if name not in bundled_traces():
        return fit_model(load_trace(name))
    if name not in _FITTED:
        _FITTED[name] = fit_model(load_trace(name))
    return _FITTED[name]


def _recognised(path: Path, begin: bytes) -> str:
    readable = [components("trace_format")[name] for name in importers()]
    for component in sorted(readable, key=lambda component: component.offered):
        if component.code().recognise(path, begin):
            return str(component.kind)
    titles = ", ".join(f"{component.kind} ({component.title})" for component in readable)
    raise TraceError("unknown format", str(path), titles)


def _code(name: str) -> ModuleType:
    module: ModuleType = components("trace_format")[name].code()
    return module
