"""Renders judged claims with figures as a self-contained HTML page, as text lines, and as plain values.

It has no script and loads nothing, so it can be sent by mail and opened directly.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from gradwire.analysis.figure_files import save_figure
from gradwire.analysis.report.html_page import prose
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.readable import time_text
from gradwire.studies.reproduce.claim import Claim
from gradwire.studies.reproduce.measures import MEASURE_LABELS, unit_of
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.verdicts import Finding, Judgement, agreements, effects_of, shown_of, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
td.n { text-align: right; white-space: nowrap } img { max-width: 100% }
.shown { color: #00704f } .part { color: #9a6200 } .not { color: #b03a00 } .remark { color: #595959 }
"""
CLASSES = {
    "shown": "shown",
    "shown under a condition": "part",
    "unresolved": "part",
    "reached": "shown",
    "same direction": "part",
    "mixed": "part",
}
HOLDS = {True: "holds", False: "does not hold", None: "unresolved"}


def html_page(
    title: str,
    judgements: Sequence[Judgement],
    figures: Iterable[Figure | None],
    how: str,
    seeds: int,
    ground: str = "",
) -> str:
    """Return the whole page.

    `how` : the command. `figures` : one per judgement, or None. `ground` : from `basis_text`.
    """
    lines = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>From <code>{escape(how)}</code>. {_lead(judgements, seeds)}</p>",
        f"<p>{escape(ground)}</p>" if ground else "",
        "<table><tr><th></th><th>claim</th><th>published</th><th>verdict</th></tr>",
    ]
    for judgement in judgements:
        claim = judgement.claim
        lines.append(
            f"<tr><td><a href='#{claim.id}'>{claim.id}</a></td><td>{escape(claim.sentence)}</td>"
            f"<td>{escape(published_words(claim))}</td><td>{_verdict(judgement)}</td></tr>"
        )
    lines.append("</table>")
    for judgement, figure in zip(judgements, figures, strict=True):
        lines += _section(judgement, figure)
    return "\n".join([*lines, "</body></html>", ""])


def basis_text(ground: JsonView) -> str:
    """Describe the basis of all figures.

    Keys: `traces`; the `device` of training runs ("" without); if present, the number of `seeds`, and `ours`, the rules
    of policies that are choices of this project, by label.
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
    return " ".join(sentences)


def published_words(claim: Claim) -> str:
    """Return the published numbers, with [ours] if the claim itself is a goal of this project."""
    is_ours = claim.source.startswith(("[ours]", "ours"))
    return " ".join(filter(None, [claim.published, "[ours]" if is_ours else ""]))


def _lead(judgements: Sequence[Judgement], seeds: int) -> str:
    """Explain how to read the figures of a page."""
    if any(finding.expect.interval for judgement in judgements for finding in judgement.findings):
        return (
            f"Figures are means over {seeds} seeds with their 95 % intervals (Student's t); differences are between "
            "runs of the same seed, which have initial parameters and order of data in common. Verdicts are computed "
            "from the intervals: <b>shown</b> if all expectations hold, <b>not shown</b> if none does, "
            "<b>unresolved</b> if an interval includes the limit. For bytes and times, medians decide, shown with the "
            "smallest and the largest value."
        )
    return (
        f"{_medians(seeds)} Verdicts are "
        "computed from them. Beside a published number: <b>reached</b>, <b>same direction</b> with the share of the "
        "published effect, <b>opposite</b>, or <b>unresolved</b> if the seeds disagree about the sign. Other claims "
        "are judged by limits of this project [ours]: <b>shown</b> if all hold, <b>not shown</b> if none does. "
        "Not measured on hardware. Baselines of the TCP family are shown with both minimum time-outs."
    )


def _medians(seeds: int) -> str:
    return (
        f"Figures are medians of {seeds} seeds, with the smallest and the largest if these differ."
        if seeds > 1
        else "Figures are of one seed."
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], figures: Container[int]) -> list[str]:
    """Return the lines of a table; none without rows. `figures` : numbers of the columns with figures."""
    lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
    for row in rows:
        cells = [(" class='n'" if number in figures else "", escape(cell)) for number, cell in enumerate(row)]
        lines.append("".join(f"<td{kind}>{cell}</td>" for kind, cell in cells))
    return ["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"] if rows else []


def _effects(judgement: Judgement) -> list[str]:
    """Return the table of each arm's effect."""
    rows = []
    for effect in effects_of(judgement):
        figures = effect.figure.interval_text("share"), effect.change.interval_text("points")
        rows.append(
            [effect.setting, label_of(effect.policy), *figures, "resolved" if effect.resolved else "unresolved"]
        )
    words = MEASURE_LABELS[shown_of(judgement.claim)] if rows else ""
    return _table(("setting", "variant", words, "minus the baseline's", "differs from zero"), rows, (2, 3))


def _section(judgement: Judgement, figure: Figure | None) -> list[str]:
    claim = judgement.claim
    lines = [
        f"<h2 id='{claim.id}'>{claim.id}: {escape(claim.sentence)}</h2>",
        f"<p>Published: {escape(claim.published)} <span class='remark'>({escape(claim.source)})</span></p>",
        f"<p>{_verdict(judgement)}. {prose(judgement.reason)}</p>",
    ]
    if claim.remark:
        lines.append(f"<p class='remark'>{prose(claim.remark)}</p>")
    beside, rows = judgement.simulated, []
    for number, finding in enumerate(judgement.findings):
        what = f"{finding.expect.text}{f' ({finding.expect.condition})' if finding.expect.condition else ''}"
        measured = [finding.measured, *([beside.findings[number].measured] if beside else [])]
        published = finding.published_text, finding.comparison.text if finding.comparison else ""
        holds = f"{limit_verdict(finding)}{f'; time-outs: {finding.because}' if finding.because else ''}"
        rows.append([what, *measured, *published, finding.expected_text, holds])
    heads = ("on sockets", "simulated") if beside else ("measured",)
    heads = ("figure", *heads, "published", "verdict", "our limit [ours]", "")
    lines += _table(heads, rows, (1, 2, 3, 5) if beside else (1, 2, 4))
    if figure is not None:
        data = base64.b64encode(png_of(figure)).decode()
        words = f"{MEASURE_LABELS[claim.shown]} by policy and setting"
        lines.append(f"<img alt='{escape(words)}' src='data:image/png;base64,{data}'>")
    return [*lines, *_agreement_table(judgement), *_effects(judgement), *_everything(judgement)]


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


def _agreement_table(judgement: Judgement) -> list[str]:
    rows = []
    for each in agreements(judgement):
        times = time_text(each.emulated), time_text(each.simulated), f"{100 * each.difference:+.1f} %"
        rows.append([each.setting, label_of(each.policy), MEASURE_LABELS[each.measure], *times])
    return _table(("setting", "policy", "time", "real sockets", "simulated", "difference"), rows, (3, 4, 5))


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


def _everything(judgement: Judgement) -> list[str]:
    """Return the table of all measures behind the verdict."""
    names = [name for name in MEASURE_LABELS if any(name in figures for figures in judgement.figures.values())]
    rows = []
    for setting, policy in dict.fromkeys((s, p) for s, p, _ in judgement.figures):
        spreads = [(name, judgement.over_seeds(setting, policy, name)) for name in names]
        cells = [value_text(spread.median, unit_of(name)) if spread else "-" for name, spread in spreads]
        rows.append([setting, label_of(policy), *cells])
    heads = ("setting", "policy", *(MEASURE_LABELS[name] for name in names))
    return ["<details><summary>all measures</summary>", *_table(heads, rows, range(2, len(heads))), "</details>"]


def _verdict(judgement: Judgement) -> str:
    return f"<b class='{CLASSES.get(judgement.verdict, 'not')}'>{judgement.verdict}</b>"


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
