"""Builds the sections of a report page on training runs, judged claims, and fidelity."""

from __future__ import annotations

import tomllib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from matplotlib.figure import Figure

from gradwire.analysis.comparison.tables import KIND_LABELS, Grid
from gradwire.analysis.fidelity.fidelity_measure import Measure
from gradwire.analysis.fidelity.fidelity_report import HEADINGS, RANGE_HEADING, measure_row, seeds_grid
from gradwire.analysis.measurement_window import completion_times
from gradwire.analysis.metrics import measure
from gradwire.analysis.report import html_page as html
from gradwire.analysis.report.charts import Axis, Chart, Lines, Series
from gradwire.analysis.report.run_sections import pareto_chart, tail_chart
from gradwire.analysis.report.story import training_card, training_tiles
from gradwire.analysis.training.seed_statistics import TrainingArm, rows_by_seed, rows_over
from gradwire.analysis.training.training_comparison import MEASURES, have_equal_steps, rows_of
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import accuracy_text, share_text, time_text
from gradwire.studies.reproduce.claims_page import HOLDS, basis_text, png_of, published_words, reading_text
from gradwire.studies.reproduce.measures import MEASURE_LABELS, unit_of
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.published import Comparison, PublishedNumber
from gradwire.studies.reproduce.verdicts import Judgement, SeedRange, effects_of, value_text

PS_PER_MS = 1e9
CURVE = 400
ABSTRACT = "[abstract]"
NOT_EVALUATED = "no evaluation yet."
INTERVALS = (
    "Means with half of their 95 % interval (Student's t); differences are between runs of the same seed, and "
    "unresolved if their interval includes zero, or with fewer than three seeds."
)
VERDICTS = (
    "reached",
    "same direction",
    "mixed",
    "opposite",
    "shown",
    "shown under a condition",
    "unresolved",
    "not shown",
)


# --- training runs ---------------------------------------------------------------------------------------------------


def training_section(
    trainings: Sequence[tuple[TrainingResult, str, Path | None]], title: str, arms: Sequence[TrainingArm] = ()
) -> html.PageSection:
    """Return the section of training runs, each with the text of its scenario and its folder, if any.

    arms : groups of the runs, if they are from several seeds.
    """
    all_of = [run for run, _, _ in trainings]
    section = html.PageSection(title, "training run" if len(all_of) == 1 else f"{len(all_of)} training runs")
    facts = list(_learned_facts(all_of)) or ["No step is complete yet."]
    section.lead, *more = facts if len(all_of) < 2 else [f"{len(all_of)} training runs side by side.", *facts]
    if arms:
        counts = {len(arm.by_seed) for arm in arms}
        counts_text = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
        section.lead = f"{len(arms)} {'policy' if len(arms) == 1 else 'policies'}, each from {counts_text} seeds."
        more = [fact for fact in more if fact.startswith("**") or fact.endswith(NOT_EVALUATED)]
        section.add(html.table("", [arm.name for arm in arms], rows_over(arms)), html.paragraph(INTERVALS))
    tables = [tomllib.loads(text) for _, text, _ in trainings]
    section.add(training_card(all_of, tables) if all(tables) else "", training_tiles(all_of), html.bullet_list(more))
    section.add(*(html.chart(run) for run in (_seeds_charts(arms) if arms else _learned_charts(all_of))))
    if arms:
        section.add(html.heading("Final accuracy"), html.table("", [arm.name for arm in arms], rows_by_seed(arms)))
    else:
        section.add(html.heading("Figures"), html.table("", [run.name for run in all_of], rows_of(all_of)))
    section.add(html.heading("Commands"))
    commands = [str(run.summary.get("command", "")) for run in all_of]
    commands = [command for command in commands if command.startswith("gradwire ")]  # empty for runs from Python
    commands += [f"gradwire train {at}/scenario.toml" for _, _, at in trainings if at is not None]
    section.add(html.code("\n".join(dict.fromkeys(commands))))
    for run, (_, text, _) in zip(all_of, trainings, strict=True):
        section.add(html.collapsible(f"Scenario of {run.name}", html.code(text.strip())) if text else "")
    return section


def _learned_facts(trainings: Sequence[TrainingResult]) -> Iterator[str]:
    for run in trainings:
        if not run.scores or not run.steps:
            yield f"{run.name}: {run.summary.get('steps_done', 0)} steps, {NOT_EVALUATED}"
            continue
        last, steps = run.scores[-1], run.steps
        clock = f" and {time_text(steps[-1]['clock_ps'])} of simulated time" if run.timed else ""
        lost = sum(row["lost"] for row in steps) / len(steps)
        yield (
            f"{run.name}: an accuracy of {accuracy_text(last['accuracy'])} after "
            f"{run.summary['steps_done']:,} steps{clock}, "
            f"with {share_text(lost)} of the sent values lost in the mean step."
        )
        if run.diverged is not None:
            yield f"**{run.name} diverged: the loss is not finite from step {run.diverged} on.**"


def _learned_charts(trainings: Sequence[TrainingResult]) -> Iterator[Chart]:
    for column, words, unit in _measures(trainings):
        series = [Series(run.name, _points(run, column, unit), dots=True) for run in trainings]
        yield _accuracy_chart(words, "On validation data.", series)
    yield Lines(
        "Loss of every step",
        "On training data, mean of the workers.",
        Axis("step"),
        Axis("loss"),
        [
            Series(run.name, [(row["step"], row["loss"]) for row in run.steps[:: -(-len(run.steps) // CURVE) or 1]])
            for run in trainings
        ],
    )
    yield from _accuracy_front([run.name for run in trainings], [[run] for run in trainings])


def _accuracy_front(names: Sequence[str], groups: Sequence[Sequence[TrainingResult]]) -> Iterator[Chart]:
    """Yield the final accuracy of runs or means of seeds against their simulated time, if there are several."""
    timed = [(number, [run for run in runs if run.timed and run.scores]) for number, runs in enumerate(groups)]
    timed = [(number, runs) for number, runs in timed if runs]
    if len(timed) > 1:
        last = [[run.scores[-1] for run in runs] for _, runs in timed]
        dots = [
            (fmean(row["clock_ps"] for row in rows) / PS_PER_MS, 100 * fmean(row["accuracy"] for row in rows))
            for rows in last
        ]
        axes, numbers = (Axis("simulated time (ms)"), Axis("final accuracy (%)")), [number for number, _ in timed]
        yield pareto_chart(
            "Time against accuracy", axes, [names[number] for number in numbers], dots, numbers, is_gain=True
        )


def _seeds_charts(arms: Sequence[TrainingArm]) -> Iterator[Chart]:
    has_means = all(have_equal_steps(arm.trainings) for arm in arms)
    what = "means of the seeds, and the range from lowest to highest" if has_means else "each seed, up to its own end"
    for column, words, unit in _measures([run for arm in arms for run in arm.trainings]):
        if has_means:
            series = [Series(arm.name, _means(arm, column, unit), dots=True) for arm in arms]
        else:
            series = [
                Series(f"{arm.name}, seed {seed}", _points(run, column, unit), dots=True)
                for arm in arms
                for seed, run in sorted(arm.by_seed.items())
            ]
        yield _accuracy_chart(words, f"On validation data: {what}.", series)
    yield from _accuracy_front([arm.name for arm in arms], [arm.trainings for arm in arms])


def _measures(trainings: Sequence[TrainingResult]) -> Iterator[tuple[str, str, float]]:
    """Yield (column, label, unit) of what accuracy is plotted against."""
    timed = any(run.timed for run in trainings)
    return (measure for measure in MEASURES if timed or measure[0] != "clock_ps")


def _accuracy_chart(words: str, says: str, series: Sequence[Series]) -> Chart:
    against = words.split(",")[0].replace("sent by all workers", "bytes sent by all workers")
    return Lines(f"Accuracy against {against}", says, Axis(words), Axis("accuracy (%)"), series)


def _points(training: TrainingResult, column: str, unit: float) -> list[tuple[float, float]]:
    rows = [row for row in training.scores if column != "clock_ps" or row["clock_ps"]]
    return [(row[column] / unit, 100 * row["accuracy"]) for row in rows]


def _means(arm: TrainingArm, column: str, unit: float) -> list[tuple[float, float, float, float]]:
    """Return (x, mean, least, most) of the seeds' scores, in order."""
    points = []
    for rows in zip(*(run.scores for run in arm.trainings), strict=True):
        accuracies = [100 * row["accuracy"] for row in rows]
        x = fmean(row[column] / unit for row in rows)
        if x or column != "clock_ps":
            points.append((x, fmean(accuracies), min(accuracies), max(accuracies)))
    return points


# --- claims ----------------------------------------------------------------------------------------------------------


def claims_page(title: str, judgements: Sequence[Judgement], figures: Sequence[Figure | None], data: Json) -> str:
    """Return the page of a reproduction, with its pictures. `data` : the content of claims.json."""
    section = claims_section(data, title, judgements, figures)
    return html.html_page(title, [section], data["command"])


def claims_section(
    data: Json, title: str, judgements: Sequence[Judgement] = (), figures: Sequence[Figure | None] = ()
) -> html.PageSection:
    """Return the section of judged claims from claims.json; while the judgements and figures are known, with them."""
    claims = data["claims"]
    counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}
    section = html.PageSection(title, "claims")
    word = "claim" if len(claims) == 1 else "claims"
    section.lead = f"{len(claims)} {word}: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n) + "."
    rows = [
        [claim["id"], claim["claim"], published_words(claim["published"], claim["source"]), claim["verdict"]]
        for claim in claims
    ]
    section.add(html.paragraph(basis_text(data)) if "traces" in data else "")
    section.add(html.paragraph(reading_text(judgements, data.get("seeds", 1))) if judgements else "")
    section.add(html.grid(Grid("", ["", "claim", "published", "verdict"], rows), words=True))
    section.add(*_published_numbers(claims, judgements))
    for number, claim in enumerate(claims):
        section.add(html.heading(f"{claim['id']}: {claim['claim']}"))
        source = f"Published: {claim['published'] or 'nothing'} (source: {claim['source']})"
        section.add(html.paragraph(source, "remark"), html.paragraph(f"**{claim['verdict']}.** {claim['reason']}"))
        section.add(html.paragraph(claim.get("remark", ""), "remark"))
        section.add(_expectations(claim["expectations"], judgements[number] if judgements else None))
        section.add(_picture(figures[number], claim) if figures else "".join(map(html.chart, _claim_chart(claim))))
        means = [each.figure.interval_text("share") for each in effects_of(judgements[number])] if judgements else []
        section.add(_agreement(claim.get("agreement", ())), _effects(claim["effects"], means), _claim_figures(claim))
    section.add(html.heading("Commands"), html.code(data["command"]))
    return section


def _published_numbers(claims: Sequence[Json], judgements: Sequence[Judgement]) -> Iterator[str]:
    """Yield the heading and the table of all published numbers beside ours, those of abstracts first; nothing without
    any."""
    rows = []
    for number, claim in enumerate(claims):
        table = _expectation_rows(claim["expectations"], judgements[number] if judgements else None)
        for expectation, row in zip(claim["expectations"], table, strict=True):
            if expectation.get("published"):
                rows.append((expectation["published"]["mark"] != ABSTRACT, [claim["id"], *row]))
    if rows:
        heads = ["claim", *_expectation_heads(judgements[0] if judgements else None)]
        yield html.heading("Published numbers")
        yield html.grid(Grid("", heads, [row for _, row in sorted(rows, key=lambda each: each[0])]), words=True)


def _picture(figure: Figure | None, claim: Json) -> str:
    if figure is None:
        return ""
    words, data = f"{MEASURE_LABELS[claim['shown']]} by policy and setting", b64encode(png_of(figure)).decode()
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{data}">'


def _expectations(expectations: Sequence[Json], judged: Judgement | None) -> str:
    rows = _expectation_rows(expectations, judged)
    return html.grid(Grid("", _expectation_heads(judged), rows), words=True) if rows else ""


def _expectation_heads(judged: Judgement | None) -> list[str]:
    """Return the heads of a table of expectations."""
    heads = (
        ["on sockets", "simulated"] if judged and judged.simulated else ["measured" if judged else "measured, median"]
    )
    return ["figure", *heads, "published", "verdict", "our limit [ours]", ""]


def _expectation_rows(expectations: Sequence[Json], judged: Judgement | None) -> list[list[str]]:
    beside = judged.simulated if judged else None
    rows = []
    for number, expectation in enumerate(expectations):
        what = expectation["text"] + (f" ({expectation['condition']})" if expectation["condition"] else "")
        low, high = (
            "" if expectation[end] is None else value_text(expectation[end], expectation["unit"])
            for end in ("low", "high")
        )
        bound = f"at least {low}" if low else f"at most {high}" if high else "-"
        expected = f"{low} to {high}" if low and high else bound
        measured = ["-" if expectation["median"] is None else value_text(expectation["median"], expectation["unit"])]
        if judged:
            measured = [each.findings[number].measured for each in (judged, beside) if each]
        remark = f"time-outs: {expectation['because']}" if expectation["because"] else ""
        holds = HOLDS[expectation["holds"]] if low or high else ""
        published = _beside_published(expectation)
        rows.append([what, *measured, *published, expected, "; ".join(filter(None, [holds, remark]))])
    return rows


def _agreement(rows: Sequence[Json]) -> str:
    """Return the table of times on the testbed beside the simulated ones."""
    lines = []
    for row in rows:
        times = time_text(row["emulated"]), time_text(row["simulated"])
        difference = f"{100 * (row['emulated'] / row['simulated'] - 1):+.1f} %"
        lines.append([row["setting"], label_of(row["policy"]), MEASURE_LABELS[row["measure"]], *times, difference])
    head = ["setting", "policy", "time", "real sockets", "simulated", "difference"]
    return html.grid(Grid("", head, lines), words=True) if lines else ""


def _beside_published(expectation: Json) -> tuple[str, str]:
    """Return the published number and the verdict beside it; empty without one, as in older files."""
    number = expectation.get("published")
    if number is None:
        return "", ""
    comparison = Comparison(expectation["verdict"], expectation["share"])
    published = PublishedNumber(**number)
    return f"{published.limit_text}{value_text(published.value, expectation['unit'])} {published.mark}", comparison.text


def _effects(effects: Sequence[Json], means: Sequence[str]) -> str:
    rows = []
    for effect, mean in zip(effects, means or [accuracy_text(each["mean"]) for each in effects], strict=True):
        change = SeedRange(tuple(effect["changes"])).interval_text("points")
        word = "resolved" if effect["resolved"] else "unresolved"
        rows.append([effect["setting"], effect["label"], mean, change, word])
    head = ["setting", "variant", "mean", "minus the baseline's", "differs from zero"]
    return html.grid(Grid("", head, rows), words=True) if rows else ""


def _claim_chart(claim: Json) -> Iterator[Chart]:
    """Yield the claim's figure by setting and policy: medians over seeds, with the smallest and the largest."""
    available = [name for name in MEASURE_LABELS if any(row.get(name) is not None for row in claim["measures"])]
    name = str(claim.get("shown") or next(iter(available), ""))  # older files lack this key
    rows = [row for row in claim["measures"] if row.get(name) is not None]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    if not rows:
        return
    scale = 1 / PS_PER_MS if unit_of(name) == "time" else 100 if unit_of(name) == "share" else 1
    series = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        points = []
        for position, setting in enumerate(settings):
            values = [row[name] * scale for row in rows if row["policy"] == policy and row["setting"] == setting]
            if values:
                points.append((float(position), median(values), min(values), max(values)))
        series.append(Series(label_of(policy), points, dots=True, line=len(settings) > 1))
    unit = {"time": " (ms)", "share": " (%)"}.get(unit_of(name), "")
    yield Lines(
        f"{claim['id']}: {MEASURE_LABELS.get(name, name)}",
        "Medians over seeds, with minimum and maximum.",
        Axis("", ticks=[(float(position), setting) for position, setting in enumerate(settings)]),
        Axis(MEASURE_LABELS.get(name, name) + unit),
        series,
        whiskers=True,
    )


def _claim_figures(claim: Json) -> str:
    names = [name for name in MEASURE_LABELS if any(row.get(name) is not None for row in claim["measures"])]
    rows = []
    for setting, policy in dict.fromkeys((row["setting"], row["policy"]) for row in claim["measures"]):
        matching = [row for row in claim["measures"] if (row["setting"], row["policy"]) == (setting, policy)]
        cells = []
        for name in names:
            values = [row[name] for row in matching if row.get(name) is not None]
            cells.append(value_text(median(values), unit_of(name)) if values else "-")
        rows.append([setting, label_of(policy), *cells])
    return html.collapsible(
        "all measures", html.grid(Grid("", ["setting", "policy", *(MEASURE_LABELS[name] for name in names)], rows))
    )


# --- fidelity --------------------------------------------------------------------------------------------------------


def fidelity_section(data: Json, sim: Result, emu: Result, title: str) -> html.PageSection:
    """Return the section on the agreement of an emulated and a simulated run, from fidelity.json and their Results."""
    verdicts: list[str] = data["verdicts"]
    section = html.PageSection(title, "fidelity", f"**{verdicts[-1]}.**", [])
    seeds = data.get("seeds") or []
    if seeds:
        seed_names = [str(row["seed"]) for row in seeds]
        seed_list = f"{', '.join(seed_names[:-1])} and {seed_names[-1]}"
        runs = f"{len(seeds)} runs of each world, with the seeds {seed_list}"
        section.add(html.paragraph(f"{runs}, whose messages are judged together."))
    section.add(html.bullet_list(verdicts[:-1]))
    section.add(*(html.chart(plot) for plot in _both(sim, emu)))
    if seeds:
        section.add(html.heading("Mean completion time, seed by seed"), html.grid(seeds_grid(seeds)._replace(title="")))
        if sum(row["difference"] is not None for row in seeds) > 1:
            section.add(html.paragraph("± is half of the 95 % interval of the mean difference, in percentage points."))
    measures = [Measure(**{key: value for key, value in row.items() if key != "passed"}) for row in data["measures"]]
    scatter = any(entry.low is not None for entry in measures)
    head = [*HEADINGS[:2], RANGE_HEADING, *HEADINGS[2:]] if scatter else HEADINGS
    measures.sort(key=lambda entry: entry.is_within is not False)
    rows = [measure_row(entry, scatter) for entry in measures]
    section.add(html.heading("Figures"), html.grid(Grid("", ["figure", *head[1:]], rows)))
    commands = [str(run.timing["command"]) for run in (sim, emu) if run.timing.get("command")]
    if commands:
        section.add(html.heading("Commands"), html.code("\n".join(dict.fromkeys(commands))))
    if sim.scenario:
        section.add(html.collapsible("Scenario of the run", html.code(sim.scenario.strip())))
    return section


def _both(sim: Result, emu: Result) -> Iterator[Chart]:
    for job in (entry.job for entry in measure(sim)):
        times = [completion_times(run, job) for run in (sim, emu)]
        for kind in (kind for kind in KINDS if all(kind in times_by_kind for times_by_kind in times)):
            named = [(name, by_kind[kind]) for name, by_kind in zip(("simulated", "emulated"), times, strict=True)]
            title = f"{job}: completion of {KIND_LABELS[kind]} messages"
            yield tail_chart(title, "Share of messages slower than a time, in both worlds.", named, CURVE)
