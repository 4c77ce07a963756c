"""`compare_rows` simulates the experiments that htsim has printed, and puts both completion times side by side."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.studies.htsim.command import parse_command
from gradwire.studies.htsim.rows import FINISHED, HtsimRow, read_rows
from gradwire.studies.htsim.translation import return_trip_ps, scenario_of, tree_of
from gradwire.studies.parallel.process_pool import Task, completed

DATACENTER = Path("htsim/sim/datacenter")
"""Folder of uet-htsim with its experiments, their matrices and topologies."""
PRINTED = ("validate_outputs/*.out", "results/*.txt")
CLOSE = 0.05
"""Difference of completion times that counts as agreement; our choice."""


@dataclass(frozen=True)
class RowResult:
    """One experiment in both simulators. `first_us`, `last_us` : the median over seeds of this simulator's completion
    times of the first and of the last message, as htsim counts them: to the sender's last acknowledgement.

    spread_us : last_us of the seeds, ascending. problem : why it was not simulated, or empty. again_us : last_us of
    htsim when it was run beside, 0 if it was not.
    """

    source: str
    title: str
    command: str
    htsim_first_us: float
    htsim_last_us: float
    first_us: float = 0.0
    last_us: float = 0.0
    spread_us: tuple[float, ...] = ()
    problem: str = ""
    again_us: float = 0.0

    @property
    def difference(self) -> float:
        """Difference of the last completion from htsim's, as a share of it."""
        return self.last_us / (self.again_us or self.htsim_last_us) - 1


def find_rows(checkout: Path, chosen: str = "") -> dict[str, list[HtsimRow]]:
    """Return the experiments that a checkout of uet-htsim has printed, by file; those whose title, command or file
    contains `chosen`. An experiment that several files repeat comes once, from the first.

    Raises
    ------
    GradwireError
        If the folder is no checkout, or nothing is left.
    """
    folder = checkout / DATACENTER if (checkout / DATACENTER).is_dir() else checkout
    files = [file for pattern in PRINTED for file in sorted(folder.glob(pattern)) if "Running" in file.read_text()]
    if not files:
        expected = "a checkout of github.com/ultraethernet/uet-htsim"
        raise GradwireError("has no experiments that htsim has printed", str(checkout), expected)
    seen: set[str] = set()
    found: dict[str, list[HtsimRow]] = {}
    for file in files:
        for row in read_rows(file):
            words = f"{file.name} {row.title} {row.command}".lower()
            if row.command not in seen and chosen.lower() in words:
                seen.add(row.command)
                found.setdefault(file.name, []).append(row)
    if not found:
        raise GradwireError(f'no experiment contains "{chosen}"', "--claim", "part of a title, a command or a file")
    return found


def compare_rows(
    checkout: Path,
    out: Path,
    chosen: str = "",
    seeds: int = 1,
    jobs: int = 1,
    beside: bool = False,
    on_progress: Callable[[float, str], object] = lambda share, words: None,
) -> list[RowResult]:
    """Simulate experiments and return both simulators' figures, in order. Rows that `out` already holds are kept.

    chosen : as in `find_rows`. seeds : runs of each experiment. jobs : experiments at a time.
    beside : also run the checkout's own htsim_uec, if it is built, and compare with that.

    Raises
    ------
    GradwireError
        As `find_rows` does; or if `beside` and htsim_uec is not built.
    """
    folder = checkout / DATACENTER if (checkout / DATACENTER).is_dir() else checkout
    if beside and not (folder / "htsim_uec").is_file():
        raise GradwireError("is not built", str(folder / "htsim_uec"), "htsim_uec of this checkout, see its README")
    rows = [(file, row) for file, of_file in find_rows(checkout, chosen).items() for row in of_file]
    results = {(each.command, len(each.spread_us)): each for each in _read(out)}
    kept = {command: each for (command, count), each in results.items() if count == seeds or each.problem}
    tasks = [
        Task(row.command, compare_row, (file, row, folder, seeds, beside), name=row.title)
        for file, row in rows
        if row.command not in kept or (beside and not kept[row.command].again_us)
    ]
    on_progress(0.0, f"0/{len(tasks)} experiments")
    for count, (command, result) in enumerate(completed(tasks, jobs, "an experiment that ends"), 1):
        kept[command] = result
        write_results(out, kept.values())
        on_progress(count / len(tasks), f"{count}/{len(tasks)} experiments")
    return [kept[row.command] for _, row in rows]


def compare_row(source: str, row: HtsimRow, folder: Path, seeds: int, beside: bool) -> RowResult:
    """Simulate one experiment with several seeds; return both simulators' figures, or why it cannot be simulated."""
    base = RowResult(source, row.title, row.command, row.first_us, row.last_us)
    try:
        command = parse_command(row.command)
        ends = sorted(_completions_us(scenario_of(command, folder) | {"seed": seed}) for seed in range(1, seeds + 1))
        back = return_trip_ps(tree_of(command, folder)) / 1e6
    except GradwireError as error:
        return replace(base, problem=error.what)
    again = _run_htsim(row.command, folder) if beside else 0.0
    last = tuple(round(end + back, 3) for end in sorted(end for _, end in ends))
    first = statistics.median(begin for begin, _ in ends) + back
    return replace(base, first_us=round(first, 3), last_us=statistics.median(last), spread_us=last, again_us=again)


def _completions_us(tables: dict[str, object]) -> tuple[float, float]:
    """Return the first and the last completion of a simulation, microseconds."""
    from gradwire.studies.connect import simulate

    ends = simulate(build_scenario(tables)).messages["end_ps"].to_pylist()
    if min(ends) < 0:
        raise GradwireError(f"{ends.count(-1)} of {len(ends)} messages did not end", "duration", "a longer run")
    return min(ends) / 1e6, max(ends) / 1e6


def _run_htsim(command: str, folder: Path) -> float:
    """Run htsim_uec; return its last completion, microseconds. Raises GradwireError if it shows none."""
    words = ["./htsim_uec", *command.split()[1:], "-o", "/dev/null"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    ends = [float(end) for end in FINISHED.findall(done.stdout)]
    if not ends:
        raise GradwireError("shows no completion", " ".join(words), "lines with 'finished at'")
    return max(ends)


def _read(out: Path) -> Iterable[RowResult]:
    """Return the rows that an earlier comparison has left. Raises GradwireError if the file has other content."""
    file = out / "rows.json"
    if not file.exists():
        return []
    try:
        return [RowResult(**{**row, "spread_us": tuple(row["spread_us"])}) for row in json.loads(file.read_text())]
    except (ValueError, TypeError, KeyError) as error:
        raise GradwireError("holds no rows of an earlier comparison", str(file), "another --out") from error


def write_results(out: Path, results: Iterable[RowResult]) -> None:
    """Write all rows, as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out / "rows.json") as partial:
        partial.write_text(json.dumps([asdict(each) for each in results], indent=1), encoding="utf-8")


def summary(results: Sequence[RowResult]) -> str:
    """Return how many rows agree, as a sentence."""
    judged = [each for each in results if not each.problem]
    close = sum(abs(each.difference) <= CLOSE for each in judged)
    text = f"{close} of {len(judged)} experiments end within {CLOSE:.0%} of htsim"
    if judged:
        text += f"; median difference {statistics.median(abs(each.difference) for each in judged):.1%}"
    left = len(results) - len(judged)
    return f"{text}; {left} cannot be set" if left else text
