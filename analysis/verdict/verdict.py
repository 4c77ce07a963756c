"""`verdicts` states for every job of a comparison which run is fastest, what bounds it, and how certain that is.

The sentence, `Verdict.text`, is the same on the terminal, in the report, in notebooks and in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.analysis.comparison.tables import headings
from gradwire.analysis.metrics import Metrics, ran_on
from gradwire.analysis.verdict.bottleneck import Bottleneck, Evidence, bottleneck_of, evidence_of
from gradwire.analysis.verdict.difference import Difference, Samples, difference_of
from gradwire.result_store.result import Result
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import share_text, time_text

MOST_NAMED = 4
"""Runs that a sentence names one by one (our choice)."""


@dataclass(frozen=True)
class JudgedRun:
    """A run of a job, with its runs with other seeds. `name` : its heading in tables."""

    name: str
    samples: Samples
    bottleneck: Bottleneck

    @property
    def quoted_name(self) -> str:
        """The name, in quotation marks if it has a comma or "and", which would end it in a list."""
        return f'"{self.name}"' if "," in self.name or " and " in self.name else self.name

    @property
    def mean_ps(self) -> float:
        """Mean iteration over seeds, picoseconds."""
        return self.samples.mean_ps


@dataclass(frozen=True)
class Verdict:
    """The verdict on one job.

    job : its name. runs : in the order of the comparison. prefix : names the job if there are several.
    simulated : false if a run used real sockets, which know no seeds.
    subject : name of a single run.
    """

    job: str
    runs: list[JudgedRun]
    prefix: str = ""
    simulated: bool = True
    subject: str = ""

    @cached_property
    def ranking(self) -> list[JudgedRun]:
        """The runs, fastest first; equal ones in the order of the comparison."""
        return sorted(self.runs, key=lambda run: run.mean_ps)

    def against_fastest(self, run: JudgedRun) -> Difference:
        """Return the difference of a run from the fastest one."""
        return difference_of(run.samples, self.ranking[0].samples)

    @cached_property
    def alike(self) -> list[JudgedRun]:
        """The fastest run, and those that do not differ from it by more than chance, in the comparison's order."""
        best = self.ranking[0]
        return [run for run in self.runs if run is best or not self.against_fastest(run).is_significant]

    @property
    def text(self) -> str:
        """All sentences, in one line."""
        return " ".join(filter(None, [f"{self.prefix}{self._answer()}", self._usage(), self._confidence()]))

    def _answer(self) -> str:
        best = self.ranking[0]
        if len(self.runs) == 1:
            return f"{self.subject or best.quoted_name} is {best.bottleneck.text}."
        slower = [run for run in self.ranking if run not in self.alike]
        if not slower:
            spread = max(abs(self.against_fastest(run).change) for run in self.runs)
            least = max(self.against_fastest(run).resolution for run in self.runs if run is not best)
            return (
                f"No difference between {_listed([run.quoted_name for run in self.runs])}: mean iterations differ by "
                f"{'nothing' if not spread else f'at most {share_text(spread)}'}, and less than {share_text(least)} "
                f"counts as chance. The job is {best.bottleneck.text}."
            )
        names = _listed([run.quoted_name for run in self.alike])
        verb = "are fastest, without a difference between them" if len(self.alike) > 1 else "is fastest"
        gaps = [f"{share_text(1 - best.mean_ps / run.mean_ps)} less than {run.quoted_name}" for run in slower]
        if len(gaps) > MOST_NAMED:
            gaps = [*gaps[: MOST_NAMED - 1], f"... {gaps[-1]}"]
        who = "The fastest" if len(self.alike) > 1 else best.quoted_name
        first = self.runs[0]
        begin = "" if first in self.alike else f"{first.quoted_name}, the first, is {first.bottleneck.text}. "
        return (
            f"{names} {verb}: {time_text(best.mean_ps)} per iteration, {_joined(gaps)}. "
            f"{begin}{who} is {best.bottleneck.text}."
        )

    def _usage(self) -> str:
        """Return sentences on the model's time and utilisation, with the first run and with a faster one."""
        first, best = self.runs[0], self.ranking[0]
        runs = [first] if first in self.alike else [first, best]
        texts = {run.quoted_name: text for run in runs if (text := run.bottleneck.usage_text)}
        if len(self.runs) == 1:
            return " ".join(texts.values())
        return " ".join(f"With {name}, {text[0].lower()}{text[1:]}" for name, text in texts.items())

    def _confidence(self) -> str:
        fewest = min(self.runs, key=lambda run: (len(run.samples.seeds), len(run.samples.values)))
        seeds, count = len(fewest.samples.seeds), len(fewest.samples.values)
        basis = f"{count} iteration{'s' * (count != 1)}, {seeds} seed{'s' * (seeds != 1)}"
        level = fewest.samples.confidence
        advice = "" if level == "high" or not self.simulated else "; --seeds 5 raises it"
        return f"Confidence: {level} ({basis}{advice})."

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        return {
            "job": self.job,
            "text": self.text,
            "fastest": [run.name for run in self.alike],
            "confidence": min((run.samples.confidence for run in self.runs), key=("low", "medium", "high").index),
            "runs": [
                {
                    "run": run.name,
                    "mean_ps": run.mean_ps,
                    "seeds": run.samples.seeds,
                    "iterations": len(run.samples.values),
                    "against_fastest": self.against_fastest(run).as_dict(),
                    **run.bottleneck.as_dict(),
                }
                for run in self.runs
            ],
        }


def verdicts(
    results: Sequence[Result],
    metrics: Sequence[Sequence[Metrics]],
    evidence: Sequence[Evidence],
    other_seeds: Sequence[Result] = (),
) -> list[Verdict]:
    """Return the verdict on every job with complete iterations.

    Parameters
    ----------
    metrics, evidence : of each Result, in the same order.
    other_seeds : further runs of the same scenarios.
    """
    groups: dict[str, list[int]] = {}
    for number, result in enumerate(results):
        groups.setdefault(_identity(result), []).append(number)
    further: dict[str, list[Result]] = {}
    for result in other_seeds:
        further.setdefault(_identity(result), []).append(result)
    known_further = {key: [evidence_of(result) for result in runs] for key, runs in further.items()}
    entries_of_job: dict[tuple[str, str, bool], list[tuple[str, Metrics]]] = {}
    for key, numbers in groups.items():
        for entry in metrics[numbers[0]]:
            if entry.iteration.count:
                entries_of_job.setdefault((entry.job, entry.work, entry.steady.is_steady), []).append((key, entry))
    found = []
    for (job, _, _), members in entries_of_job.items():
        runs = []
        for name, (key, _) in zip(headings([entry for _, entry in members]), members, strict=True):
            same = [results[number] for number in groups[key]] + further.get(key, [])
            known = [evidence[number] for number in groups[key]] + known_further.get(key, [])
            same, known = _with_iterations(same, known, job)
            runs.append(JudgedRun(name, Samples.of(same, job), bottleneck_of(same, job, known)))
        simulated = not any(entry.emulated for _, entry in members)
        found.append(
            Verdict(job, runs, f"{job}: " if len(entries_of_job) > 1 else "", simulated, _subject(members[0][1]))
        )
    return found


def _subject(entry: Metrics) -> str:
    """Return the name of a scenario, with its policy if it is one of several."""
    return entry.name if entry.policy == "base" else f"{entry.name} ({entry.label or entry.policy})"


def _identity(result: Result) -> str:
    """Return a key that is equal for runs of one scenario that differ in their seed only."""
    tables = {name: value for name, value in result.tables.items() if name != "seed"}
    summary = result.summary
    names = [summary.get(name) for name in ("name", "policy", "label", "trace_hash")]
    unknown = None if tables else (summary.get("scenario_hash"), id(result))
    return json.dumps([names, ran_on(result), tables, unknown], sort_keys=True, default=str)


def _with_iterations(
    results: Sequence[Result], evidence: Sequence[Evidence], job: str
) -> tuple[list[Result], list[Evidence]]:
    """Leave out runs that ended before their first iteration."""
    kept = [pair for pair in zip(results, evidence, strict=True) if job in pair[0].iterations["job"].to_pylist()]
    return [result for result, _ in kept], [entry for _, entry in kept]


def _listed(names: Sequence[str]) -> str:
    shown = (
        list(names) if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} others"]
    )
    return _joined(shown)


def _joined(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
