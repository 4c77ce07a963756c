"""`report` recognises its inputs (output folders, Python objects), and writes one HTML page with a section for each.

The content identifies a folder: result.json (a Result), comparison.json, sweep.toml, claims.json, training.json (a
training run), a list of several, or fidelity.json. Results passed one by one are compared, and so are those of several
comparisons of one scenario. Everything else has its own section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.analysis.comparison.compare import Comparison, compare, result_folders
from gradwire.analysis.report.html_page import PageSection, html_page
from gradwire.analysis.report.run_sections import RebuiltRun, TimelineOptions, rebuild_runs, run_section
from gradwire.analysis.timeline.timeline import timeline
from gradwire.result_store.folders.output_folder import NEW_FILE, new_file, new_folder, refuse_existing
from gradwire.result_store.folders.replacement import set_aside
from gradwire.result_store.provenance import members
from gradwire.result_store.result import Result
from gradwire.result_store.training_result import SCENARIO, TrainingResult, training_run_folders
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.json_data import Json, parse_json
from gradwire.scenarios.validation.argument_checks import require_instance, require_path, wrong_type_error
from gradwire.studies.sweep.outcome import Sweep
from gradwire.traces.trace import Trace, resolve_trace

EXPECTED_INPUT = "a folder of gradwire run, compare, sweep, reproduce, train or fidelity"
SHARED = ("run", "training")
"""Kinds of input that share one section."""
PAGE_MARK = b"This file needs no network: figures, script and style are"
"""Words of every page, by which it is recognised."""
TIMELINES = "-timelines"
"""Suffix of the folder of Perfetto files, after the name of the page."""


@dataclass
class ReportFiles:
    """Written files: the page, and files for Perfetto beside it."""

    path: Path
    sections: list[str]
    size: int
    timelines: list[Path] = field(default_factory=list)


def report(
    *sources: Any,
    out: str | Path = "report.html",
    title: str = "",
    timelines: bool = True,
    iteration: int | None = None,
    perfetto: bool = True,
    trace: Trace | str | Path | None = None,
    command: str = "",
    force: bool = False,
) -> ReportFiles:
    """Write one HTML file that shows all sources and opens without a network.

    sources : folders of Results, comparisons, sweeps, reproductions, training runs and fidelity; Results, Comparisons,
        Sweeps and TrainingResults; lists of these. Single Results are compared.
    out : the new file. Files for Perfetto go to a new folder beside it, `report-timelines` for `report.html`.
    title : of the page; by default the names of its content.
    timelines : draw a timeline of one iteration of each run.
    iteration : of the timelines; by default the steady-state one whose duration is nearest to the mean.
    perfetto : also write the timelines for ui.perfetto.dev, beside the page.
    trace : the trace that jobs replayed, if it was passed to `simulate` and is not named in the scenario.
    force : replace an earlier page and its files for Perfetto, never anything else.

    Raises `ResultError` if there is nothing to report, a folder holds none of these or is damaged, a run has no such
    iteration, or `out` exists or cannot be written.
    """
    page_path = require_path(out, "report(out)", NEW_FILE, ResultError)
    if not page_path.name:
        raise ResultError("is a folder", f"report(out) {page_path}", NEW_FILE)
    title = require_instance(title, str, "report(title)", "a text", ResultError)
    trace = resolve_trace(trace, "report(trace)")
    timelines_dir = page_path.with_name(page_path.stem + TIMELINES)
    if page_path.exists() and not force:
        raise ResultError("exists already", str(page_path), "a new file, or --force to replace a page")
    if perfetto and timelines and not force:
        refuse_existing(timelines_dir)
    inputs = [item for source in sources for item in _found(source)]
    if not inputs:
        raise ResultError("nothing to report", "report", EXPECTED_INPUT)
    sections, again = _sections(inputs, TimelineOptions(timelines, iteration, trace))
    text = html_page(title or ", ".join(dict.fromkeys(section.title for section in sections)), sections, command)
    with defer_interrupt(), ExitStack() as replaced:
        if force:
            replaced.enter_context(set_aside(page_path, _refuse_other_page))
            replaced.enter_context(set_aside(timelines_dir, _refuse_other_timelines))
        with new_file(page_path) as partial:  # writes both page and timelines, or neither
            partial.write_text(text, encoding="utf-8")
            written = _perfetto(again, timelines_dir) if perfetto and again else []
    kinds = [f"{section.title} ({section.kind})" for section in sections]
    return ReportFiles(page_path, kinds, len(text.encode()), written)


def _refuse_other_page(path: Path) -> None:
    """Raise ResultError unless a file is a page that `report` has written."""
    if path.is_symlink() or not path.is_file() or PAGE_MARK not in path.read_bytes():
        raise ResultError("cannot be replaced (--force)", str(path), "a page of gradwire report, or another --out")


def _refuse_other_timelines(path: Path) -> None:
    """Raise ResultError unless a folder holds nothing but timelines."""
    foreign = [entry.name for entry in path.iterdir() if entry.suffix != ".json"] if path.is_dir() else [path.name]
    if path.is_symlink() or foreign:
        what = f"cannot be replaced (--force): {', '.join(foreign[:3])}"
        raise ResultError(what, str(path), "files of gradwire report alone, or another --out")


def _perfetto(again: Sequence[RebuiltRun], timelines_dir: Path) -> list[Path]:
    """Write a file per run, of the iteration that the page shows; for flows without jobs, of the whole run."""
    names = [f"{name}.json" for name in result_folders([run.result for run in again])]
    with new_folder(timelines_dir) as folder:
        for run, name in zip(again, names, strict=True):
            iterations = None if run.iteration is None else (run.iteration, run.iteration + 1)
            timeline(run.found, folder / name, iterations=iterations)
    return [timelines_dir / name for name in names]


# --- kinds of input --------------------------------------------------------------------------------------------------

ReportInput = tuple[str, Any, str]
"""(kind, content, path or "" if it is not stored)."""


def _found(source: Any) -> list[ReportInput]:
    for kind, owner in (("run", Result), ("comparison", Comparison), ("sweep", Sweep), ("training", TrainingResult)):
        if isinstance(source, owner):
            return [(kind, source, "")]
    if isinstance(source, str | Path):
        return [_in_folder(Path(source))]
    if isinstance(source, Iterable) and not isinstance(source, dict | bytes):
        return [item for member in source for item in _found(member)]
    raise wrong_type_error(source, "report(sources)", EXPECTED_INPUT, ResultError)


READERS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "result.json": ("run", Result.read),
    "comparison.json": (
        "comparison",
        lambda folder: [(Result.read(member), str(member)) for member in members(folder)],
    ),
    "fidelity.json": ("fidelity", lambda folder: _json(folder / "fidelity.json")),
    "sweep.toml": ("sweep", Sweep.read),
    "claims.json": ("claims", lambda folder: _json(folder / "claims.json")),
    "training.json": ("training", TrainingResult.read),
    "trainings.txt": ("trainings", lambda folder: [(TrainingResult.read(m), m) for m in training_run_folders(folder)]),
}
"""Kind of a folder, and its reader, by the file that marks it."""


def _in_folder(folder: Path) -> ReportInput:
    if not folder.is_dir():
        raise ResultError("is a file" if folder.exists() else "no such directory", str(folder), EXPECTED_INPUT)
    for name, (kind, read) in READERS.items():
        if (folder / name).is_file():
            return kind, read(folder), str(folder)
    if (folder / "reproduction.txt").is_file():
        resume = f"gradwire reproduce ... --out {folder}, which resumes it"
        raise ResultError("is an unfinished reproduction without verdicts", str(folder), resume)
    raise ResultError("holds nothing to report", str(folder), EXPECTED_INPUT)


def _json(path: Path) -> Json:
    try:
        content: Json = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ResultError("is damaged", str(path), "the file as gradwire wrote it") from None
    if not isinstance(content, dict) or content.get("format") != 1:
        raise ResultError("has an unsupported format", str(path), "format 1")
    return content


def _sections(inputs: Sequence[ReportInput], wanted: TimelineOptions) -> tuple[list[PageSection], list[RebuiltRun]]:
    """Return the sections in the order of the inputs; a shared section is at its first input. Sections with the same
    title have their folders appended."""
    sections: list[tuple[PageSection, str]] = []
    again: list[RebuiltRun] = []
    kinds = [kind for kind, _, _ in inputs]
    for number, (kind, read, where) in enumerate(inputs):
        if kind in SHARED and kind in kinds[:number]:
            continue
        same_kind = [item for item in inputs if item[0] == kind] if kind in SHARED else []
        if kind in ("run", "comparison"):
            results = [(result, at) for _, result, at in same_kind] if kind == "run" else read
            if isinstance(results, Comparison):
                comparison, paths = results, [""] * len(results.results)
            else:
                comparison, paths = compare([result for result, _ in results]), [path for _, path in results]
            rebuilt, notes = rebuild_runs(comparison, wanted)
            again += rebuilt
            section = run_section(comparison, paths, rebuilt, notes)
        elif kind == "training":
            section = _trainings([(training, Path(at) if at else None) for _, training, at in same_kind], "")
        else:
            section = _other(kind, read, where)
        sections.append((section, ", ".join(at for _, _, at in same_kind if at) or where))
    titles = [section.title for section, _ in sections]
    for section, where in sections:
        if titles.count(section.title) > 1 and where:
            section.title += f" ({where})"
    return [section for section, _ in sections], again


def _other(kind: str, read: Any, where: str) -> PageSection:
    if kind == "sweep":
        from gradwire.studies.report.sweep_section import sweep_section

        return sweep_section(read)
    from gradwire.studies.report import other_sections

    if kind == "trainings":
        return _trainings(read, Path(where).name)
    if kind == "claims":
        return other_sections.claims_section(read, Path(where).name)
    from gradwire.analysis.comparison.pooled_runs import pooled

    folders = [f"seed-{row['seed']}" for row in read.get("seeds", ())] or [""]
    results = [
        pooled([Result.read(Path(where) / "results" / folder / world) for folder in folders])
        for world in ("simulated", "emulated")
    ]
    return other_sections.fidelity_section(read, results[0], results[1], Path(where).name)


def _text_of(path: Path) -> str:
    """Return the text of a training run's scenario. Raises ResultError if it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"cannot be read ({error})", str(path)) from None


def _trainings(read: Sequence[tuple[TrainingResult, Path | None]], title: str) -> PageSection:
    from gradwire.analysis.training.seed_statistics import arms_of
    from gradwire.studies.report.other_sections import training_section

    if not read:
        raise ResultError("holds no training run yet", title, EXPECTED_INPUT)
    evaluated = [training for training, _ in read if training.scores and training.steps]
    arms = arms_of(evaluated)
    seeds = any(len(arm.by_seed) > 1 for arm in arms) and sum(len(arm.by_seed) for arm in arms) == len(evaluated)
    names_of_runs = [training.name for training, _ in read]
    inputs = []
    for training, at in read:
        text = _text_of(at / SCENARIO) if at else ""
        if names_of_runs.count(training.name) > 1 and (seeds or at):
            label = f"{training.name}, seed {training.seed}" if seeds else f"{training.name} ({at})"
            training = replace(training, summary={**training.summary, "label": label})
        inputs.append((training, text, at))
    names = dict.fromkeys(str(training.summary.get("name", "")) for training, _ in read)
    return training_section(inputs, title or ", ".join(names), arms if seeds else ())
