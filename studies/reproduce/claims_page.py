"""Renders judged claims as sentences and lines, for pages and terminals, and as plain values."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING

from gradwire.analysis.figure_files import save_figure
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.readable import time_text
from gradwire.studies.reproduce.measures import MEASURE_LABELS
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.verdicts import Finding, Judgement, agreements, effects_of, shown_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOLDS = {True: "holds", False: "does not hold", None: "unresolved"}


def basis_text(ground: JsonView) -> str:
    """Describe the basis of all figures.

    Keys: `traces`; the `device` of training runs ("" without); if present, the number of `seeds`, `ours`, the rules of
    policies that are choices of this project, by label, and the labels of policies `left_out` of a quick run.
    """
    traces = ", ".join(ground["traces"])
    several = "s" if len(ground["traces"]) > 1 else ""
    of_traces = f"Replayed trace{several}: {traces}." if traces else "No trace is replayed."
    sentences = [of_traces]
    if ground["device"]:
        sentences.append(f"Training runs computed on: {ground['device']}.")
    if ground.get("testbed"):
        sentences.append(f"Measured on the testbed ({ground['testbed']}), each beside a simulation of the same.")
    if "seeds" in ground:
        sentences.append(f"Seeds: {', '.join(map(str, range(1, ground['seeds'] + 1)))}.")
    if ground.get("ours"):
        labels: dict[str, list[str]] = {}
        for label, words in ground["ours"].items():
            labels.setdefault(words, []).append(label)
        rules = ". ".join(f"{', '.join(names)}: {words}" for words, names in labels.items())
        sentences.append(f"Rules of policies that are not the papers' [ours]: {rules}.")
    if ground.get("left_out"):
        sentences.append(f"A quick run leaves out: {'; '.join(ground['left_out'])}.")
    return " ".join(sentences)


def published_words(published: str, source: str) -> str:
    """Return a claim's published numbers, with [ours] if the claim itself is a goal of this project."""
    is_ours = source.startswith(("[ours]", "ours"))
    return " ".join(filter(None, [published, "[ours]" if is_ours else ""]))


def reading_text(judgements: Sequence[Judgement], seeds: int) -> str:
    """Explain how to read the figures of a page."""
    if any(finding.expect.interval for judgement in judgements for finding in judgement.findings):
        return (
            f"Figures are means over {seeds} seeds with their 95 % intervals (Student's t); differences are between "
            "runs of the same seed, which have initial parameters and order of data in common. Verdicts are computed "
            "from the intervals: **shown** if all expectations hold, **not shown** if none does, "
            "**unresolved** if an interval includes the limit. For bytes and times, medians decide, shown with the "
            "smallest and the largest value."
        )
    medians = "Figures are of one seed."
    if seeds > 1:
        medians = f"Figures are medians of {seeds} seeds, with the smallest and the largest if these differ."
    return (
        f"{medians} Verdicts are "
        "computed from them. Beside a published number: **reached**, **same direction** with the share of the "
        "published effect, **opposite**, or **unresolved** if the seeds disagree about the sign. Other claims "
        "are judged by limits of this project [ours]: **shown** if all hold, **not shown** if none does. "
        "Not measured on hardware. Baselines of the TCP family are shown with both minimum time-outs."
    )


def finding_lines(judgement: Judgement) -> list[str]:
    """Return a line for each figure, with the simulated one beside that of the testbed."""
    lines = [finding_line(finding) for finding in judgement.findings]
    if judgement.simulated is None:
        return lines
    beside = judgement.simulated.findings
    return [f"{line}; simulated {other.measured}" for line, other in zip(lines, beside, strict=True)]


def agreement_lines(judgement: Judgement) -> list[str]:
    """Return a line for each time on the testbed beside the simulated one."""
    return [
        f"{each.setting}, {label_of(each.policy)}: {MEASURE_LABELS[each.measure]} {time_text(each.emulated)}, "
        f"simulated {time_text(each.simulated)} ({100 * each.difference:+.1f} %)"
        for each in agreements(judgement)
    ]


def finding_line(finding: Finding) -> str:
    """Return a figure on one line: measured, published and its verdict, our limit and whether it holds."""
    condition = f" [{finding.expect.condition}]" if finding.expect.condition else ""
    parts = [f"{finding.expect.text}{condition}: {finding.measured}"]
    if finding.comparison is not None:
        parts.append(f"published {finding.published_text}: {finding.comparison.text}")
    if finding.has_limits:
        parts.append(f"our limit {finding.expected_text} [ours]: {limit_verdict(finding)}")
    return "; ".join(parts)


def limit_verdict(finding: Finding) -> str:
    """Return whether a figure is within our limits, in words; empty without limits."""
    return HOLDS[finding.holds] if finding.has_limits else ""


def png_of(figure: Figure) -> bytes:
    """Return a figure as PNG bytes."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, "picture.png")
    return buffer.getvalue()


def as_dict(judgements: Sequence[Judgement]) -> dict[str, object]:
    """Return plain values for JSON."""
    claims: list[Json] = []
    for judgement in judgements:
        claim = judgement.claim
        claims.append(
            {
                "id": claim.id,
                "source": claim.source,
                "claim": claim.sentence,
                "published": claim.published,
                "verdict": judgement.verdict,
                "reason": judgement.reason,
                "remark": claim.remark,
                "shown": claim.shown,
                "expectations": [
                    {
                        **{key: getattr(finding.expect, key) for key in ("text", "condition", "unit", "low", "high")},
                        "median": _number(finding.spread.median) if finding.spread.values else None,
                        "absent": finding.absent,
                        "values": [_number(value) for value in finding.spread.values],
                        "holds": finding.holds,
                        "because": finding.because,
                        "published": asdict(finding.expect.published) if finding.expect.published else None,
                        "verdict": finding.comparison.word if finding.comparison else None,
                        "share": finding.comparison.share if finding.comparison else None,
                    }
                    for finding in judgement.findings
                ],
                "effects": [
                    {
                        "setting": effect.setting,
                        "policy": effect.policy,
                        "label": label_of(effect.policy),
                        "measure": shown_of(claim),
                        "mean": effect.figure.mean,
                        "change": effect.change.mean,
                        "interval": list(effect.interval) if len(effect.change.values) > 1 else None,
                        "changes": list(effect.change.values),
                        "resolved": effect.resolved,
                    }
                    for effect in effects_of(judgement)
                ],
                "measures": [
                    {"setting": setting, "policy": policy, "seed": seed}
                    | {name: _number(value) for name, value in values.items()}
                    for (setting, policy, seed), values in judgement.figures.items()
                ],
                **({"agreement": [asdict(each) for each in agreements(judgement)]} if judgement.simulated else {}),
            }
        )
    return {"format": 1, "claims": claims}


def _number(value: float) -> float | None:
    """Return a number that JSON supports; None for one that is infinite."""
    return value if isfinite(value) else None
