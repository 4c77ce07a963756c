"""What else a page may hold: sweeps, trainings, judged claims, and how simulator and sockets agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from gradwire.analysis.claims.arms import label_of
from gradwire.analysis.claims.judge import value_text
from gradwire.analysis.claims.measures import WORDS
from gradwire.analysis.claims.page import ground_words, unit_of
from gradwire.analysis.fidelity_measure import Measure
from gradwire.analysis.fidelity_show import HEAD, SCATTER, measure_row, seeds_grid
from gradwire.analysis.html.charts import Axis, Chart, Lines, Series
from gradwire.analysis.html.pieces import (
    Section,
    chart,
    code,
    folded,
    grid,
    heading,
    listed,
    paragraph,
    table,
)
from gradwire.analysis.learning import MEASURES, alike, rows_of
from gradwire.analysis.measured import completion_times
from gradwire.analysis.metrics import measure
from gradwire.analysis.over_seeds import Arm, rows_by_seed, rows_over
from gradwire.analysis.tables import KIND_WORDS, Grid
from gradwire.analysis.tail import later
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.learned import Learned
from gradwire.scenarios.readable import accuracy_text, share_text, time_text
from gradwire.scenarios.result import KINDS, Result

if TYPE_CHECKING:
    from pathlib import Path

PS_PER_MS = 1e9
CURVE = 400
UNSEEN = "and no look at other data yet."
INTERVALS = (
    "Means with half of their 95 % interval (Student's t); differences are between trainings of the same seed, and "
    "unresolved where their interval holds zero, or where there are less than three."
)
VERDICTS = ("shown", "shown under a condition", "unresolved", "not shown")


# --- trainings -------------------------------------------------------------------------------------------------------


def learned_section(
    trainings: Sequence[tuple[Learned, str, Path | None]], title: str, arms: Sequence[Arm] = ()
) -> Section:  # fmt: skip
    """Trainings side by side.

    trainings : with the text of their scenarios, and their folders if they have any.
    arms : of which they are, if they are from several seeds.
    """
    all_of = [each for each, _, _ in trainings]
    section = Section(title, "training" if len(all_of) == 1 else f"{len(all_of)} trainings")
    facts = list(_learned_facts(all_of)) or ["Nothing has been learned yet."]
    section.lead, *more = facts if len(all_of) < 2 else [f"{len(all_of)} trainings side by side.", *facts]
    if arms:
        counts = {len(arm.by_seed) for arm in arms}
        said = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
        section.lead = f"{len(arms)} {'policy' if len(arms) == 1 else 'policies'}, each from {said} seeds."
        more = [each for each in more if each.startswith("**") or each.endswith(UNSEEN)]
        section.add(table("", [arm.name for arm in arms], rows_over(arms)), paragraph(INTERVALS))
    section.add(listed(more))
    section.add(*(chart(each) for each in (_seeds_charts(arms) if arms else _learned_charts(all_of))))
    if arms:
        section.add(heading("Accuracy at the end"), table("", [arm.name for arm in arms], rows_by_seed(arms)))
    else:
        section.add(heading("Figures"), table("", [each.name for each in all_of], rows_of(all_of)))
    section.add(heading("Train it again"))
    commands = [str(each.summary.get("command", "")) for each in all_of]
    commands = [each for each in commands if each.startswith("gradwire ")]  # none where Python asked for it
    commands += [f"gradwire train {at}/scenario.toml" for _, _, at in trainings if at is not None]
    section.add(code("\n".join(dict.fromkeys(commands))))
    for each, (_, text, _) in zip(all_of, trainings, strict=True):
        section.add(folded(f"The scenario of {each.name}", code(text.strip())) if text else "")
    return section


def _learned_facts(trainings: Sequence[Learned]) -> Iterator[str]:
    for each in trainings:
        if not each.scores or not each.steps:
            yield f"{each.name}: {each.summary.get('steps_done', 0)} steps, {UNSEEN}"
            continue
        last, steps = each.scores[-1], each.steps
        clock = f" and {time_text(steps[-1]['clock_ps'])} of simulated time" if each.timed else ""
        lost = sum(row["lost"] for row in steps) / len(steps)
        yield (
            f"{each.name}: an accuracy of {accuracy_text(last['accuracy'])} after "
            f"{each.summary['steps_done']:,} steps{clock}, "
            f"with {share_text(lost)} of what was sent lost in the mean step."
        )
        if each.diverged is not None:
            yield f"**{each.name}: the loss is no number from step {each.diverged} on.**"


def _learned_charts(trainings: Sequence[Learned]) -> Iterator[Chart]:
    timed = any(each.timed for each in trainings)
    for column, words, unit in MEASURES:
        if column == "clock_ps" and not timed:
            continue
        series = [
            Series(each.name, _points(each, column, unit), dots=True) for each in trainings
        ]  # fmt: skip
        yield Lines(
            f"Accuracy against {words.split(',')[0]}", "On data that is not learned from.", Axis(words),
            Axis("accuracy (%)"), series,
        )  # fmt: skip
    yield Lines(
        "Loss of every step", "As the workers see it, on what they learn from.", Axis("step"), Axis("loss"),
        [Series(each.name, [(row["step"], row["loss"]) for row in _thinned(each.steps)]) for each in trainings],
    )  # fmt: skip


def _seeds_charts(arms: Sequence[Arm]) -> Iterator[Chart]:
    timed = any(each.timed for arm in arms for each in arm.trainings)
    for column, words, unit in MEASURES:
        if column == "clock_ps" and not timed:
            continue
        every = all(alike(arm.trainings) for arm in arms)
        what = "means of the seeds, and from the lowest to the highest"
        what = what if every else "each seed, which ended when it did"
        series = [Series(arm.name, _means(arm, column, unit), dots=True) for arm in arms] if every else [
            Series(f"{arm.name}, seed {seed}", _points(each, column, unit), dots=True)
            for arm in arms for seed, each in sorted(arm.by_seed.items())
        ]  # fmt: skip
        yield Lines(
            f"Accuracy against {words.split(',')[0]}", f"On data that is not learned from: {what}.", Axis(words),
            Axis("accuracy (%)"), series,
        )  # fmt: skip


def _points(training: Learned, column: str, unit: float) -> list[tuple[float, float]]:
    rows = [row for row in training.scores if column != "clock_ps" or row["clock_ps"]]
    return [(row[column] / unit, 100 * row["accuracy"]) for row in rows]


def _means(arm: Arm, column: str, unit: float) -> list[tuple[float, float, float, float]]:
    """(x, mean, least, most) of the seeds' scores, one after the other."""
    found = []
    for rows in zip(*(each.scores for each in arm.trainings), strict=True):
        accuracies = [100 * row["accuracy"] for row in rows]
        x = fmean(row[column] / unit for row in rows)
        if x or column != "clock_ps":
            found.append((x, fmean(accuracies), min(accuracies), max(accuracies)))
    return found


def _thinned(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return rows[:: -(-len(rows) // CURVE) or 1]


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_section(found: Json, title: str) -> Section:
    """Judged claims, as claims.json has them."""
    claims = found["claims"]
    counts = {verdict: sum(each["verdict"] == verdict for each in claims) for verdict in VERDICTS}
    section = Section(title, "claims")
    word = "claim" if len(claims) == 1 else "claims"
    section.lead = f"{len(claims)} {word}: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n) + "."
    rows = [[each["id"], each["claim"], each["published"], each["verdict"]] for each in claims]
    section.add(paragraph(ground_words(found)) if "traces" in found else "")
    section.add(grid(Grid("", ["", "claim", "published", "verdict"], rows), words=True))
    for each in claims:
        section.add(heading(f"{each['id']}: {each['claim']}"))
        section.add(paragraph(f"Published: {each['published'] or 'nothing'} (source: {each['source']})", "remark"))
        section.add(paragraph(f"**{each['verdict']}.** {each['reason']}"), paragraph(each.get("remark", ""), "remark"))
        section.add(_expectations(each["expectations"]), *(chart(one) for one in _claim_chart(each)))
        section.add(_effects(each["effects"]), _claim_figures(each))
    section.add(heading("Run it again"), code(found["command"]))
    return section


HOLDS = {True: "holds", False: "does not hold", None: "unresolved"}


def _expectations(found: Sequence[Json]) -> str:
    rows = []
    for each in found:
        what = each["text"] + (f" ({each['condition']})" if each["condition"] else "")
        low, high = ("" if each[end] is None else value_text(each[end], each["unit"]) for end in ("low", "high"))
        one = f"at least {low}" if low else f"at most {high}" if high else "-"
        wanted = f"{low} to {high}" if low and high else one
        value = "-" if each["median"] is None else value_text(each["median"], each["unit"])
        because = f"; time-outs: {each['because']}" if each["because"] else ""
        rows.append([what, value, wanted, f"{HOLDS[each['holds']]}{because}"])
    return grid(Grid("", ["figure", "measured, median", "expected", ""], rows), words=True) if rows else ""


def _effects(found: Sequence[Json]) -> str:
    rows = []
    for each in found:
        spread = "{:+.2f} to {:+.2f}".format(*(100 * end for end in each["interval"])) if each["interval"] else "-"
        change = f"{100 * each['change']:+.2f}"
        rows.append([each["setting"], each["label"], accuracy_text(each["mean"]), change, spread,
                     "" if each["resolved"] else "unresolved"])  # fmt: skip
    head = ["setting", "arm", "mean", "less the baseline, points", "95 % interval", ""]
    return grid(Grid("", head, rows), words=True) if rows else ""


def _claim_chart(claim: Json) -> Iterator[Chart]:
    """Its figure by setting and policy: medians over seeds, with the smallest and the largest."""
    kept = [name for name in WORDS if any(row.get(name) is not None for row in claim["measures"])]
    name = str(claim.get("shown") or next(iter(kept), ""))  # older files do not say which
    rows = [row for row in claim["measures"] if row.get(name) is not None]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    if not rows:
        return
    scale = 1 / PS_PER_MS if unit_of(name) == "time" else 100 if unit_of(name) == "share" else 1
    series = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        points = []
        for place, setting in enumerate(settings):
            values = [row[name] * scale for row in rows if row["policy"] == policy and row["setting"] == setting]
            if values:
                points.append((float(place), median(values), min(values), max(values)))
        series.append(Series(label_of(policy), points, dots=True, line=len(settings) > 1))
    unit = {"time": " (ms)", "share": " (%)"}.get(unit_of(name), "")
    yield Lines(
        f"{claim['id']}: {WORDS.get(name, name)}", "Medians over seeds, with the smallest and the largest.",
        Axis("", ticks=[(float(place), setting) for place, setting in enumerate(settings)]),
        Axis(WORDS.get(name, name) + unit), series, whiskers=True,
    )  # fmt: skip


def _claim_figures(claim: Json) -> str:
    names = [name for name in WORDS if any(row.get(name) is not None for row in claim["measures"])]
    rows = []
    for setting, policy in dict.fromkeys((row["setting"], row["policy"]) for row in claim["measures"]):
        mine = [row for row in claim["measures"] if (row["setting"], row["policy"]) == (setting, policy)]
        cells = []
        for name in names:
            values = [row[name] for row in mine if row.get(name) is not None]
            cells.append(value_text(median(values), unit_of(name)) if values else "-")
        rows.append([setting, label_of(policy), *cells])
    return folded("all measures", grid(Grid("", ["setting", "policy", *(WORDS[name] for name in names)], rows)))


# --- simulator and sockets -------------------------------------------------------------------------------------------


def fidelity_section(found: Json, sim: Result, emu: Result, title: str) -> Section:
    """How an emulated run agrees with a simulated one, as fidelity.json has it, and its Results."""
    verdicts: list[str] = found["verdicts"]
    section = Section(title, "fidelity", f"**{verdicts[-1]}.**", [])
    seeds = found.get("seeds") or []
    if seeds:
        named = [str(row["seed"]) for row in seeds]
        which = f"{', '.join(named[:-1])} and {named[-1]}"
        runs = f"{len(seeds)} runs of each world, with the seeds {which}"
        section.add(paragraph(f"{runs}, whose messages are judged together."))
    section.add(listed(verdicts[:-1]))
    section.add(*(chart(each) for each in _both(sim, emu)))
    if seeds:
        section.add(heading("Mean completion time, seed by seed"), grid(seeds_grid(seeds)._replace(title="")))
        if sum(row["difference"] is not None for row in seeds) > 1:
            section.add(paragraph("± is half of the 95 % interval of the mean difference, in percentage points."))
    measures = [Measure(**{key: value for key, value in each.items() if key != "passed"}) for each in found["measures"]]
    scatter = any(each.low is not None for each in measures)
    head = [*HEAD[:2], SCATTER, *HEAD[2:]] if scatter else HEAD
    measures.sort(key=lambda each: each.passed is not False)
    rows = [measure_row(each, scatter) for each in measures]
    section.add(heading("Figures"), grid(Grid("", ["figure", *head[1:]], rows)))
    commands = [str(each.timing["command"]) for each in (sim, emu) if each.timing.get("command")]
    if commands:
        section.add(heading("Run it again"), code("\n".join(dict.fromkeys(commands))))
    if sim.scenario:
        section.add(folded("The scenario, as it ran", code(sim.scenario.strip())))
    return section


def _both(sim: Result, emu: Result) -> Iterator[Chart]:
    for job in (entry.job for entry in measure(sim)):
        times = [completion_times(run, job) for run in (sim, emu)]
        for kind in (kind for kind in KINDS if all(kind in each for each in times)):
            series = []
            for name, each in zip(("simulated", "emulated"), times, strict=True):
                values, shares = later(each[kind], CURVE)
                points = list(zip((values / PS_PER_MS).tolist(), shares.tolist(), strict=True))
                series.append(Series(name, points, step="before"))
            yield Lines(
                f"{job}: completion of {KIND_WORDS[kind]} messages",
                "The share of messages that took so long or longer, on both.", Axis("completion time (ms)", "log"),
                Axis("took so long or longer (%)", "log"), series,
            )  # fmt: skip
