"""`Recommendation` holds the outcome of a search, and returns it as sentences, table, plot and files.

    recommended.toml      the scenario with the recommended settings
    recommendation.json   everything that is printed
    ranking.csv           every setting that was run, best first
    ranking.png           the best settings with intervals, and what each change is worth
    points/*.json         the outcome of each run; request.json: what was searched

No file holds durations: a search that was interrupted and resumed writes the same bytes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.analysis.comparison.tables import WIDTH, Grid, TableRow, html_table, print_grid
from gradwire.analysis.confidence_intervals import MIN_VALUES, shown_half_width
from gradwire.analysis.verdict.difference import Samples, difference_of
from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.provenance import scenario_text
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import exact_percent_text, share_text, three_digits
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.recommend.knobs import HARDWARE, Settings
from gradwire.studies.recommend.search import SAME, Search, Setting
from gradwire.studies.sweep.point_store import write_errors
from gradwire.studies.sweep.sweep_tables import value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCENARIO, SUMMARY, TABLE, PLOT = "recommended.toml", "recommendation.json", "ranking.csv", "ranking.png"
MOST_ROWS = 10
"""Settings that the printed ranking and the plot show."""
LABELS = {"iteration_mean_ps": "iteration time", "iteration_max_ps": "longest iteration"}
YOURS = "yours"


class Change(NamedTuple):
    """Change of a metric relative to another setting's, as a share.

    low, high : its 95 % interval over paired seeds, None for fewer than `MIN_VALUES`.
    is_significant : more than chance, as verdicts judge it.
    """

    share: float
    low: float | None
    high: float | None
    is_significant: bool

    @classmethod
    def between(cls, samples: Samples, base: Samples) -> Change:
        """Return the change from `base` to `samples`."""
        verdict = difference_of(samples, base)
        gaps = [samples.values[key] - base.values[key] for key in samples.values]
        half = shown_half_width(gaps) / base.mean_ps
        known = len(gaps) >= MIN_VALUES
        low, high = (verdict.change - half, verdict.change + half) if known else (None, None)
        return cls(verdict.change, low, high, verdict.is_significant)

    @property
    def texts(self) -> tuple[str, str]:
        """The change and its interval: "-25.1 %", "-27.0 to -23.2 %"; "none" without an interval."""
        interval = "none"
        if self.low is not None and self.high is not None:
            interval = f"{100 * self.low:+.1f} to {100 * self.high:+.1f} %"
        return f"{100 * self.share:+.1f} %", interval

    @property
    def text(self) -> str:
        """The change with its interval, in one text."""
        return "{}, 95 % interval {}".format(*self.texts)


@dataclass(frozen=True, repr=False)
class Recommendation:
    """Outcome of a search.

    failures : reason by setting. lost : share of bytes lost with the user's setting, and with the recommended one.
    folder : of its files.
    """

    settings: Settings
    search: Search
    metric: str
    failures: Mapping[Setting, str]
    lost: tuple[float, float]
    folder: Path

    @property
    def chosen(self) -> dict[str, Any]:
        """The recommended changes, by key; empty if the user's settings are best."""
        pairs = zip(self.settings.knobs, self.search.chosen, strict=True)
        return {knob.key: knob.values[index] for knob, index in pairs if index}

    @property
    def file(self) -> Path:
        """File of the scenario with the recommended settings."""
        return self.folder / SCENARIO

    @property
    def scenario(self) -> Scenario:
        """The scenario with the recommended settings."""
        return self.settings.scenario_of(self.search.chosen)

    @property
    def _samples(self) -> tuple[Samples, Samples]:
        finalists = self.search.finalists
        return finalists[self.search.chosen], finalists[self.search.space.user]

    @property
    def change(self) -> Change:
        """The metric with the recommended settings, relative to the user's."""
        return Change.between(*self._samples)

    def name(self, setting: Setting) -> str:
        """Return the changes of a setting as text."""
        return self.settings.name(setting) or YOURS

    @property
    def ranking(self) -> list[tuple[Setting, Samples, Change]]:
        """The settings with full runs of all seeds, best first, relative to the user's."""
        user = self._samples[1]
        return [(setting, samples, Change.between(samples, user)) for setting, samples in self.search.finalists.items()]

    @property
    def worths(self) -> list[tuple[str, Change | None]]:
        """Change of the metric if one change alone is taken back, largest first. It is None if it was not measured, as
        the budget ended or the others need it."""
        finalists, knobs = self.search.finalists, self.settings.knobs
        without = self.search.ablations(self.search.chosen)
        worths: list[tuple[str, Change | None]] = []
        for number, index in enumerate(self.search.chosen):
            if index:
                samples = finalists.get(without.get(number, ()))
                change = None if samples is None else Change.between(samples, self._samples[0])
                worths.append((knobs[number].text(index), change))
        return sorted(worths, key=lambda worth: -(worth[1].share if worth[1] else 0.0))

    @property
    def label(self) -> str:
        """Name of the metric."""
        return LABELS.get(self.metric, self.metric)

    @property
    def text(self) -> str:
        """The verdict."""
        chosen, user = self._samples
        if not self.chosen:
            rest = "; ".join(filter(None, [f"{self.label} {self._value(user)}", self._undecided]))
            return f"no setting tried beats yours by more than chance and {exact_percent_text(SAME)}: {rest}"
        *most, last = self.settings.texts(self.search.chosen)
        rest = self._undecided or f"nothing else tried is worth more than {exact_percent_text(SAME)}"
        return (
            f"set {' and '.join(filter(None, [', '.join(most), last]))}: {self.label} {self._value(chosen)} instead of "
            f"{self._value(user)} ({self.change.text}); {rest}"
        )

    @property
    def _undecided(self) -> str:
        """Words on a setting whose mean is better than that of the chosen one, but within chance of the user's."""
        best, samples, change = self.ranking[0]
        if samples.mean_ps >= (1 - SAME) * self._samples[0].mean_ps:
            return ""
        return f"{self.name(best)} may be better ({change.text}), which more seeds than {len(samples.seeds)} would tell"

    def _value(self, samples: Samples) -> str:
        return value_text(self.metric, samples.mean_ps)

    @property
    def notes(self) -> list[str]:
        """Lines on what was searched at which cost, what was not and why, failures, and losses."""
        search, plan = self.search, self.search.plan
        count, runs = len(search.settings), len(search.values)
        rungs = f", {sum(trial.rung < plan.last for trial in search.values)} of them shortened" if plan.last else ""
        lines = [
            f"searched: {count:,} of {search.space.count:,} combinations in {runs} runs{rungs}: the cost of "
            f"{three_digits(search.spent)} full runs, budget {three_digits(plan.budget)}"
        ]
        for knob in self.settings.knobs:
            own, *others = (knob.short_text(index) for index in range(len(knob.values)))
            lines.append(f"  {knob.key}: {own} ({YOURS}), {', '.join(others)}")
        lines += [f"left out: {reason}" for reason in (*self.settings.left_out, HARDWARE)]
        lines += [f"failed: {self.name(setting)}: {why}" for setting, why in self.failures.items()]
        invalid = sum(alias is None for alias in search.aliases.values())
        if invalid:
            example = next(setting for setting, alias in search.aliases.items() if alias is None)
            lines.append(
                f"invalid: {invalid:,} combinations, such as {self.name(example)}: {self.settings.problem(example)}"
            )
        yours, chosen = self.lost
        if chosen > yours:
            lines.append(f"the recommended settings lose {share_text(chosen)} of the bytes, yours {share_text(yours)}")
        return lines

    @property
    def grids(self) -> list[Grid]:
        """The ranking, with a column for each knob that it changes, and the worth of each change, as texts."""
        shown, knobs, user = self.shown, self.settings.knobs, self.search.space.user
        used = [number for number in range(len(knobs)) if any(setting[number] for setting, _, _ in shown)]
        rows = []
        for place, (setting, samples, change) in enumerate(shown, 1):
            is_user = setting == user
            cells = [knobs[at].short_text(setting[at]) if is_user or setting[at] else "" for at in used]
            name = YOURS if is_user else f"{place}{' *' * (setting == self.search.chosen)}"
            rows.append([name, *cells, self._value(samples), *(["-", "-"] if is_user else change.texts)])
        seeds = self.search.plan.seeds
        head = ["rank", *(knobs[at].short_name for at in used), self.label, "change", "95 % interval"]
        title = f"ranking, {seeds} seed{'s' * (seeds != 1)}; *: recommended; empty: {YOURS}"
        grids = [Grid(title, head, rows)]
        if self.worths:
            taken = [[text, *(change.texts if change else ["not measured", "-"])] for text, change in self.worths]
            grids.append(Grid("worth of each change", ["without it", "change", "95 % interval"], taken))
        return grids

    @property
    def shown(self) -> list[tuple[Setting, Samples, Change]]:
        """The best of the ranking, the user's and the recommended setting."""
        kept = (self.search.space.user, self.search.chosen)
        return [row for number, row in enumerate(self.ranking) if number < MOST_ROWS or row[0] in kept]

    def __repr__(self) -> str:
        return f"<Recommendation {self.settings.scenario.name}: {self.text}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: verdict and tables."""
        tables = [
            html_table(grid.title, grid.head[1:], [TableRow(row[0], row[1:]) for row in grid.rows], grid.head[0])
            for grid in self.grids
        ]
        return f"<p>{escape(self.text)}</p>{''.join(tables)}"

    def print(self) -> None:
        """Print the verdict, the ranking, the worth of each change, and what was searched."""
        print(fill(self.text, WIDTH))
        for grid in self.grids:
            print(f"\n{grid.title}")
            print_grid(Grid("", grid.head, grid.rows))
        print()
        print("\n".join(fill(line, WIDTH, subsequent_indent="    ") for line in self.notes))

    def plot(self) -> Figure:
        """Return the plot of the ranking and of the worths, as a matplotlib figure."""
        from gradwire.studies.recommend.plot import ranking_figure

        return ranking_figure(self)

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        chosen, user = self._samples
        space = self.search.space
        return {
            "name": self.settings.scenario.name,
            "text": self.text,
            "metric": self.metric,
            "set": self.chosen,
            "yours": user.mean_ps,
            "recommended": chosen.mean_ps,
            "change": self.change._asdict(),
            "ranking": [
                {"set": self.settings.texts(setting), "mean": samples.mean_ps, **change._asdict()}
                for setting, samples, change in self.ranking
            ],
            "worths": [
                {"set": text, **(change._asdict() if change else {"share": None})} for text, change in self.worths
            ],
            "knobs": {knob.key: list(knob.values) for knob in self.settings.knobs},
            "left_out": [*self.settings.left_out, HARDWARE],
            "failures": [{"set": self.settings.texts(setting), "why": why} for setting, why in self.failures.items()],
            "combinations": space.count,
            "settings": len(self.search.settings),
            "runs": len(self.search.values),
            "cost": self.search.spent,
            "budget": self.search.plan.budget,
            "seeds": self.search.plan.seeds,
        }

    def write(self) -> None:
        """Write scenario, summary, table and plot over earlier ones. Raises `ResultError` if that fails."""
        from gradwire.analysis.figure_files import save_figure

        folder = self.folder
        with write_errors(folder):
            for name, text in (
                (SCENARIO, scenario_text(self.scenario)),
                (SUMMARY, json.dumps(self.as_dict(), indent=1) + "\n"),
            ):
                with atomic_replace(folder / name) as partial:
                    partial.write_text(text, encoding="utf-8")
            with atomic_replace(folder / TABLE) as partial, partial.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(self._rows())
            with atomic_replace(folder / PLOT) as partial:
                save_figure(self.plot(), partial, folder / PLOT)

    def _rows(self) -> list[list[Any]]:
        """Return the lines of the table: all settings by their longest runs, best first."""
        knobs, search = self.settings.knobs, self.search
        rows: list[list[Any]] = []
        for setting in search.settings:
            values = [knob.values[index] for knob, index in zip(knobs, setting, strict=True)]
            trials = [trial for trial in search.values if trial.setting == setting]
            rung = max(trial.rung for trial in trials)
            known = [value for trial in trials if trial.rung == rung and (value := search.values[trial]) is not None]
            seeds = len(known)
            rows.append(
                [*values, search.plan.rungs[rung], seeds, fmean(known) if known else "", self.failures.get(setting, "")]
            )
        key = len(knobs)
        rows.sort(key=lambda row: (-row[key], -row[key + 1], row[key + 2] or float("inf")))
        return [[*(knob.key for knob in knobs), "share_of_run", "seeds", self.metric, "failure"], *rows]
