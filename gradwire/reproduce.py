"""reproduce: published claims, run and judged; the door hands the simulator to `gradwire.analysis.claims`.

Every run is one piece of work for a pool of `jobs` processes (`gradwire.processes`), and writes its Result below the
out folder, complete or not at all. What is there already is not run again, so a reproduction that was interrupted,
or killed, goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.pace import Estimate
from gradwire.processes import Work, play
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.gone_on_with import gone_on_with
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import replaced

if TYPE_CHECKING:
    from gradwire.analysis.claims.claim import Claim
    from gradwire.analysis.claims.judge import Judgement
    from gradwire.analysis.claims.plan import Run
    from gradwire.analysis.claims.store import Store
    from gradwire.efforts import Listed
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.scenarios.schema.training import Training
    from gradwire.training.data import Images, Text

Told = Callable[[float, str], None]
Figures = dict[str, dict[str, float]]
NO_DATA: Mapping[str, str] = MappingProxyType({})


def reproduce(
    name: str,
    out: Path,
    *,
    claims: Sequence[str] = (),
    full: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    data: Mapping[str, str] = NO_DATA,
    device: str = "cpu",
    told: Told = lambda share, words: None,
) -> list[Judgement]:
    """Run what the claims of a set need, judge them, and write pictures, page.html and claims.json to `out`.

    Parameters
    ----------
    name : one of `gradwire.analysis.claims.SETS`. `claims` : ids of those that are wanted; all if empty.
    out : folder of the Results and the page; one of an earlier reproduction is gone on with.
    full : also the settings that take long. `jobs` : processes at a time.
    seeds : how often each run is made, 3 of simulations and 5 of trainings if absent.
    data : for trainings, where "pictures" and "text" are. `device` : what they compute on, as `training.device`.
    told : called with the share that is done, and words.

    Raises
    ------
    ScenarioError
        There is no such set, claim or device, or it learns from data that are not given.
    ResultError
        `out` is something else, or cannot be written.
    """
    from gradwire.analysis.claims.judge import judge
    from gradwire.analysis.claims.plan import all_runs
    from gradwire.analysis.claims.store import Store

    chosen, plans, seeds = _plans(name, claims, full, seeds, data, device)
    with gone_on_with(out, MARK, "a reproduction"):
        figures = _results(all_runs(plans), Store(out), jobs, told, full)
        judgements = [judge(claim, plan, figures) for claim, plan in zip(chosen, plans, strict=True)]
        options = [*(f"--claim {each}" for each in claims), *(["--full"] if full else []), f"--seeds {seeds}"]
        options += [f"--{key} {place}" for key, place in data.items()]
        options += [f"--device {device}"] if device != "cpu" else []
        _write(out, name, judgements, " ".join(["gradwire reproduce", name, *options]), seeds, _ground(plans, device))
    return judgements


MARK = "reproduction.txt"


def listing(
    name: str,
    out: Path,
    *,
    claims: Sequence[str] = (),
    full: bool = False,
    seeds: int | None = None,
    data: Mapping[str, str] = NO_DATA,
    device: str = "cpu",
    told: Told = lambda share, words: None,
) -> list[Listed]:
    """What `reproduce` would run, by setting, how much of it is in `out` already, and how long the rest may take.
    Nothing is run but some steps of each kind of training, which are timed, and nothing is written. Data that are not
    given are taken to be there.

    Raises
    ------
    ScenarioError
        There is no such set or claim.
    """
    from gradwire.analysis.claims.plan import all_runs
    from gradwire.analysis.claims.store import Store
    from gradwire.efforts import efforts, listed

    made_up = {"pictures": "synthetic", "text": "synthetic"}
    _, plans, _ = _plans(name, claims, full, seeds, {**made_up, **data}, device)
    runs, store = all_runs(plans), Store(out)
    return listed(runs, {run.key: store.share(run.key) for run in runs}, efforts(runs, told))


def _plans(
    name: str, claims: Sequence[str], full: bool, seeds: int | None, data: Mapping[str, str], device: str
) -> tuple[list[Claim], list[list[Run]], int]:
    """(the claims that are wanted, the runs of each, how many seeds)."""
    from gradwire.analysis.claims import LEARNED, claims_of
    from gradwire.analysis.claims.plan import planned
    from gradwire.learn import auto_device, check_trainings

    chosen = claims_of(name, list(claims))
    seeds = seeds or (5 if name in LEARNED else 3)
    device = device if device != "auto" else auto_device()  # by which a kept training is known
    plans = [planned(claim, seeds, full, data, device) for claim in chosen]
    if device != "cpu" and not any(run.trained for plan in plans for run in plan):
        raise ScenarioError(f"{device} has nothing to do: {name} only simulates", "--device", "no --device")
    check_trainings(run.scenario for plan in plans for run in plan)
    return chosen, plans, seeds


def _results(runs: Sequence[Run], store: Store, jobs: int, told: Told, full: bool) -> Figures:
    """The measures of all runs by key: of kept Results, and of the others once they are simulated.

    In a full reproduction trainings differ by hours: they are timed first, and the short ones made first, so that
    whoever stops it has most of it.
    """
    from gradwire.efforts import efforts

    found: Figures = {}
    for run in runs:
        kept = _figures(run, store)
        if kept is not None:
            found[run.key] = kept
    left = [run for run in runs if run.key not in found]
    seconds = efforts(left, told) if full else {}
    left.sort(key=lambda run: seconds.get(run.key, 0.0))
    say = _Progress(left, len(runs), {run.key: seconds.get(run.key, 1.0) for run in left}, told)
    for run in _play(left, store, jobs):
        figures = _figures(run, store)
        if figures is None:
            raise GradwireError(
                "has left no Result", run.name, "a run that ends; gradwire reproduce goes on with the others"
            )
        found[run.key] = figures
        say.done(run)
    return found


class _Progress:
    """How far a reproduction is. Work is in processor seconds of trainings where they are known, else all runs count
    alike."""

    def __init__(self, left: Sequence[Run], runs: int, work: Mapping[str, float], told: Told) -> None:
        self.runs, self.work, self.told = runs, work, told
        self.made, self.through = runs - len(left), 0.0
        self.whole = sum(work.values())
        self.estimate = Estimate(len(left))
        self._say("")

    def done(self, run: Run) -> None:
        """Another run is."""
        self.made += 1
        self.through += self.work[run.key]
        self.estimate.done(self.work[run.key])
        self._say(f", {run.name}")

    def _say(self, last: str) -> None:
        left = self.whole - self.through
        rest = f", {self.estimate.words(left)}" if self.through and left > 0 else ""
        share = self.through / self.whole if self.whole else 1.0
        self.told(share, f"{self.made}/{self.runs} runs{rest}{last}")


def _figures(run: Run, store: Store) -> dict[str, float] | None:
    """The measures of a kept Result, with what a training costs where that is asked; None if there is none."""
    found = store.figures(run.key)
    if found is None or not (run.target or run.rates):
        return found
    from gradwire.analysis.claims.costs import costs
    from gradwire.pricing import prices
    from gradwire.scenarios.learned import Learned

    place = store.place(run.key)
    step_ps = prices(place, run.scenario, run.rates, run.computing) if run.rates else {}
    return found | costs(Learned.read(place), run.target, step_ps)


def _play(runs: Sequence[Run], store: Store, jobs: int) -> Iterator[Run]:
    """Simulate or train runs, `jobs` at a time; yields each that is done."""
    if jobs == 1:
        for run in runs:
            _one(run, store)
            yield run
        return
    from gradwire.components.engines import is_kept

    by_key = {run.key: run for run in runs}
    for ended in play([Work(run.key, _one, (run, store), _engine_of(run)) for run in runs], jobs, is_kept):
        if ended.error is not None:
            raise ended.error
        if ended.lost:
            what = f"did not end well: its process was {ended.lost}"
            raise GradwireError(what, by_key[ended.work.key].name, "a run that ends; gradwire reproduce goes on")
        yield by_key[ended.work.key]


def _engine_of(run: Run) -> str:
    """The compiled engine that a simulation needs; trainings know themselves."""
    from gradwire.sim.fabric.specialise import identity_of

    return "" if run.trained else identity_of(run.scenario)


def _one(run: Run, store: Store) -> None:
    (_trained if run.trained else _simulated)(run.scenario, store.place(run.key))


def _simulated(scenario: object, place: Path) -> None:
    """Simulate and keep. Somebody else's Result of the same run is as good."""
    import warnings

    from gradwire.scenarios.errors import ScenarioNote
    from gradwire.sim.simulate import Stalled, simulate

    warnings.simplefilter("ignore", ScenarioNote)
    try:
        result = simulate(scenario)  # type: ignore[arg-type]
    except Stalled as stop:
        result = stop.result
    try:
        result.write(place)
    except ResultError:
        if not place.exists():
            raise


def _trained(scenario: Scenario, place: Path) -> None:
    """Train and keep, from where an earlier process was."""
    from gradwire.learn import train

    assert scenario.training is not None
    train(scenario, place, data=_data_of(scenario.training))


_read: dict[tuple[object, ...], Images | Text] = {}


def _data_of(table: Training) -> Images | Text:
    """The data of a training: that of the one before where it learns from the same."""
    from gradwire.training.build import data_of

    same = (table.model, table.data, table.size, table.augment, table.samples)
    if same not in _read:
        _read.clear()
        _read[same] = data_of(table)
    return _read[same]


def _ground(plans: Sequence[Sequence[Run]], device: str) -> Json:
    """Return what all figures of a reproduction rest on: the traces that jobs replayed, and the device that trained
    ("" if there are none)."""
    from gradwire.learn import auto_device

    runs = [run for plan in plans for run in plan]
    traces = dict.fromkeys(job.trace for run in runs for job in run.scenario.job)
    computed = (auto_device() if device == "auto" else device) if any(run.trained for run in runs) else ""
    return {"traces": [Path(each).name for each in traces], "device": computed}


def _write(out: Path, name: str, judgements: Sequence[Judgement], how: str, seeds: int, ground: Json) -> None:
    """Pictures, page and plain values; those of another choice of claims are overwritten."""
    from gradwire.analysis.claims.draw import picture
    from gradwire.analysis.claims.page import as_dict, ground_words, html_page, png_of

    figures = [picture(each) for each in judgements]
    for each, figure in zip(judgements, figures, strict=True):
        if figure is not None:
            (out / f"{each.claim.id}.png").write_bytes(png_of(figure))
    page = html_page(f"Claims of {name}, reproduced", judgements, figures, how, seeds, ground_words(ground))
    written: Mapping[str, str] = {
        "page.html": page,
        "claims.json": json.dumps({"command": how, **ground, **as_dict(judgements)}, indent=1),
    }
    for file, text in written.items():
        with replaced(out / file) as partial:
            partial.write_text(text, encoding="utf-8")
