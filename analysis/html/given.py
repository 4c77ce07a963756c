"""What a report is made of: folders that gradwire has left, and objects of its Python API.

A folder is known by what is in it: result.json (a Result), comparison.json, sweep.toml, claims.json, training.json (a
training) or trainings.txt (several), fidelity.json. Results that are given one by one are compared; so are those of
several comparisons of one scenario. Everything else has a section of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.analysis.compare import Comparison, compare, result_folders
from gradwire.analysis.html.document import page
from gradwire.analysis.html.pieces import Section
from gradwire.analysis.html.runs import Again, Wanted, made_again, run_section
from gradwire.analysis.timeline import write_timeline
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.given import instance_of, path_of, unfit
from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.json_data import Json, parse_json
from gradwire.scenarios.learned import SCENARIO, Learned, trainings_in
from gradwire.scenarios.output import NEW_FILE, new_file, new_folder, refuse_existing
from gradwire.scenarios.record import members
from gradwire.scenarios.result import Result
from gradwire.traces.trace import trace_of

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

KINDS = (
    ("result.json", "run"), ("comparison.json", "comparison"), ("fidelity.json", "fidelity"), ("sweep.toml", "sweep"),
    ("claims.json", "claims"), ("training.json", "training"), ("trainings.txt", "trainings"),
    ("reproduction.txt", "begun"),
)  # fmt: skip
KNOWN = "a folder of gradwire run, compare, sweep, reproduce, train or fidelity"
SHARED = ("run", "training")
"""What has one section together, however it is given."""
TIMELINES = "-timelines"
"""What the folder of files for Perfetto is called, behind the name of the page."""


@dataclass
class Reported:
    """What was written: the page, and files for Perfetto beside it."""

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
) -> Reported:
    """Write one HTML file that shows whatever it is given, and opens without a network.

    Parameters
    ----------
    sources : folders of Results, comparisons, sweeps, reproductions, trainings and fidelity; Results, Comparisons,
        Sweeps and Learned trainings; lists of these. Single Results are set side by side.
    out : the new file. Files for Perfetto go to a new folder beside it, `report-timelines` for `report.html`.
    title : of the page; the names of what is in it if empty.
    timelines : whether to draw what happened when in an iteration of each run.
    iteration : which; by default the one of the steady state whose length is nearest to the mean.
    perfetto : whether to write the same for ui.perfetto.dev, beside the page.
    trace : what jobs replayed, if that was given to `simulate` and is not named by the scenario.

    Raises
    ------
    ResultError
        There is nothing to report, a folder holds none of these or is damaged, a run has no such iteration, or `out`
        exists or cannot be written.
    """
    place = path_of(out, "report(out)", NEW_FILE, ResultError)
    if not place.name:
        raise ResultError("is a folder", f"report(out) {place}", NEW_FILE)
    title = instance_of(title, str, "report(title)", "a text", ResultError)
    trace = trace_of(trace, "report(trace)")
    beside = place.with_name(place.stem + TIMELINES)
    if place.exists():
        raise ResultError("exists already", str(place), "a file that does not exist yet")
    if perfetto and timelines:
        refuse_existing(beside)
    found = [each for source in sources for each in _found(source)]
    if not found:
        raise ResultError("there is nothing to report", "report", KNOWN)
    sections, again = _sections(found, Wanted(timelines, iteration, trace))
    text = page(title or ", ".join(dict.fromkeys(each.title for each in sections)), sections, command)
    with deferred(), new_file(place) as partial:  # page and timelines, or neither
        partial.write_text(text, encoding="utf-8")
        written = _perfetto(again, beside) if perfetto and again else []
    return Reported(place, [f"{each.title} ({each.kind})" for each in sections], len(text.encode()), written)


def comparison_page(comparison: Comparison, places: Sequence[str], command: str = "") -> str:
    """The page of a comparison, whose Results are, or will be, at `places`."""
    again, notes = made_again(comparison, Wanted())
    return page(comparison.title, [run_section(comparison, places, again, notes)], command)


def _perfetto(again: Sequence[Again], beside: Path) -> list[Path]:
    """A file per run, of the iteration that the page shows; of flows alone all of the run."""
    names = [f"{name}.json" for name in result_folders([each.result for each in again])]
    with new_folder(beside) as folder:
        for each, name in zip(again, names, strict=True):
            iterations = None if each.iteration is None else (each.iteration, each.iteration + 1)
            write_timeline(each.found, folder / name, iterations=iterations)
    return [beside / name for name in names]


# --- what it is ------------------------------------------------------------------------------------------------------

Found = tuple[str, Any, str]
"""(kind, what was read, where it is: "" for what is nowhere)."""


def _found(source: Any) -> list[Found]:
    from gradwire.analysis.sweeps.outcome import Sweep

    if isinstance(source, Result):
        return [("run", source, "")]
    if isinstance(source, Comparison):
        return [("comparison", source, "")]
    if isinstance(source, Sweep):
        return [("sweep", source, "")]
    if isinstance(source, Learned):
        return [("training", source, "")]
    if isinstance(source, str | Path):
        return [_in_folder(Path(source))]
    if isinstance(source, Iterable) and not isinstance(source, dict | bytes):
        return [each for member in source for each in _found(member)]
    raise unfit(source, "report(sources)", KNOWN, ResultError)


def _in_folder(folder: Path) -> Found:
    from gradwire.analysis.sweeps.outcome import Sweep

    if not folder.is_dir():
        raise ResultError("is a file" if folder.exists() else "no such directory", str(folder), KNOWN)
    kind = next((kind for name, kind in KINDS if (folder / name).is_file()), "")
    if kind == "run":
        return kind, Result.read(folder), str(folder)
    if kind == "comparison":
        return kind, [(Result.read(each), str(each)) for each in members(folder)], str(folder)
    if kind == "sweep":
        return kind, Sweep.read(folder), str(folder)
    if kind == "training":
        return kind, Learned.read(folder), str(folder)
    if kind == "trainings":
        return kind, [(Learned.read(each), each) for each in trainings_in(folder)], str(folder)
    if kind in ("claims", "fidelity"):
        return kind, _json(folder / f"{kind}.json"), str(folder)
    if kind == "begun":
        words = f"gradwire reproduce ... --out {folder}, which goes on where it was"
        raise ResultError("is a reproduction that has not come to its verdicts", str(folder), words)
    raise ResultError("holds nothing that can be reported", str(folder), KNOWN)


def _json(path: Path) -> Json:
    try:
        found: Json = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ResultError("is damaged", str(path), "what gradwire wrote") from None
    if not isinstance(found, dict) or found.get("format") != 1:
        raise ResultError("is of another format", str(path), "format 1")
    return found


def _sections(found: Sequence[Found], wanted: Wanted) -> tuple[list[Section], list[Again]]:
    """In the order of what was given; what shares a section is where the first of it was. Those of one title have
    their folders as well."""
    made: list[tuple[Section, str]] = []
    again: list[Again] = []
    kinds = [kind for kind, _, _ in found]
    for number, (kind, read, where) in enumerate(found):
        if kind in SHARED and kind in kinds[:number]:
            continue
        alike = [each for each in found if each[0] == kind] if kind in SHARED else []
        if kind == "run":
            section = _runs(compare([each for _, each, _ in alike]), [at for _, _, at in alike], wanted, again)
        elif kind == "training":
            section = _trainings([(each, Path(at) if at else None) for _, each, at in alike], "")
        elif kind == "comparison":
            comparison = read if isinstance(read, Comparison) else compare([result for result, _ in read])
            places = [""] * len(comparison.results) if isinstance(read, Comparison) else [place for _, place in read]
            section = _runs(comparison, places, wanted, again)
        else:
            section = _other(kind, read, where)
        made.append((section, ", ".join(at for _, _, at in alike if at) or where))
    titles = [section.title for section, _ in made]
    for section, where in made:
        if titles.count(section.title) > 1 and where:
            section.title += f" ({where})"
    return [section for section, _ in made], again


def _runs(comparison: Comparison, places: Sequence[str], wanted: Wanted, again: list[Again]) -> Section:
    """A section of runs side by side; what can be shown of them again is added to `again`."""
    own, notes = made_again(comparison, wanted)
    again += own
    return run_section(comparison, places, own, notes)


def _other(kind: str, read: Any, where: str) -> Section:
    if kind == "sweep":
        from gradwire.analysis.html.swept import sweep_section

        return sweep_section(read)
    from gradwire.analysis.html import others

    if kind == "trainings":
        return _trainings(read, Path(where).name)
    if kind == "claims":
        return others.claims_section(read, Path(where).name)
    from gradwire.analysis.pooled import pooled

    folders = [f"seed-{row['seed']}" for row in read.get("seeds", ())] or [""]
    results = [
        pooled([Result.read(Path(where) / "results" / folder / world) for folder in folders])
        for world in ("simulated", "emulated")
    ]
    return others.fidelity_section(read, results[0], results[1], Path(where).name)


def _text_of(path: Path) -> str:
    """Return the text of a training's scenario. Raises ResultError if it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"cannot be read ({error})", str(path)) from None


def _trainings(read: Sequence[tuple[Learned, Path | None]], title: str) -> Section:
    from gradwire.analysis.html.others import learned_section
    from gradwire.analysis.over_seeds import arms_of

    if not read:
        raise ResultError("holds no training yet", title, KNOWN)
    looked_at = [each for each, _ in read if each.scores and each.steps]  # others have only begun
    arms = arms_of(looked_at)
    seeds = any(len(arm.by_seed) > 1 for arm in arms) and sum(len(arm.by_seed) for arm in arms) == len(looked_at)
    called = [each.name for each, _ in read]
    given = []
    for each, at in read:
        text = _text_of(at / SCENARIO) if at else ""
        if called.count(each.name) > 1 and (seeds or at):
            label = f"{each.name}, seed {each.seed}" if seeds else f"{each.name} ({at})"
            each = replace(each, summary={**each.summary, "label": label})
        given.append((each, text, at))
    names = dict.fromkeys(str(each.summary.get("name", "")) for each, _ in read)
    return learned_section(given, title or ", ".join(names), arms if seeds else ())
