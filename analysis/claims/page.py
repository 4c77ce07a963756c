"""Page: one self-contained HTML file of judged claims, pictures inside, and the same as plain values.

No script, nothing fetched: it can be sent by mail, and opened as it is.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from gradwire.analysis.claims.arms import label_of
from gradwire.analysis.claims.claim import Claim
from gradwire.analysis.claims.effects import effects_of, shown_of
from gradwire.analysis.claims.judge import Judgement, value_text
from gradwire.analysis.claims.measures import TIMES, WORDS
from gradwire.analysis.figures import save_figure
from gradwire.analysis.html.pieces import prose
from gradwire.scenarios.json_data import Json, JsonView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
td.n { text-align: right; white-space: nowrap } img { max-width: 100% }
.shown { color: #00704f } .part { color: #9a6200 } .not { color: #b03a00 } .remark { color: #595959 }
"""
CLASSES = {"shown": "shown", "shown under a condition": "part", "unresolved": "part"}
HOLDS = {True: "holds", False: "does not hold", None: "unresolved"}


def rows_of(judgement: Judgement) -> list[tuple[str, str, str, str, str]]:
    """(id, claim, published, measured, verdict) of a judgement, texts."""
    claim = judgement.claim
    measured = "; ".join(f"{each.expect.text} {each.measured}" for each in judgement.findings)
    return [(claim.id, claim.sentence, claim.published, measured or "-", judgement.verdict)]


def html_page(
    title: str, judgements: Sequence[Judgement], figures: Iterable[Figure | None], how: str, seeds: int,
    ground: str = "",
) -> str:
    """The whole page. `how`: the command. `figures`: a picture per judgement, or None. `ground`: see
    `ground_words`."""
    lines = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>From <code>{escape(how)}</code>. {_lead(judgements, seeds)}</p>",
        f"<p>{escape(ground)}</p>" if ground else "",
        "<table><tr><th></th><th>claim</th><th>published</th><th>verdict</th></tr>",
    ]
    for each in judgements:
        claim = each.claim
        lines.append(
            f"<tr><td><a href='#{claim.id}'>{claim.id}</a></td><td>{escape(claim.sentence)}</td>"
            f"<td>{escape(published_words(claim))}</td><td>{_verdict(each)}</td></tr>"
        )
    lines.append("</table>")
    for each, figure in zip(judgements, figures, strict=True):
        lines += _section(each, figure)
    return "\n".join([*lines, "</body></html>", ""])


def ground_words(ground: JsonView) -> str:
    """Return a sentence on what all figures rest on: `traces`, and the `device` of training runs ("" without)."""
    traces = ", ".join(ground["traces"])
    several = "s" if len(ground["traces"]) > 1 else ""
    of_traces = f"Replayed trace{several}: {traces}." if traces else "No trace is replayed."
    return f"{of_traces} Trainings computed on: {ground['device']}." if ground["device"] else of_traces


def published_words(claim: Claim) -> str:
    """Return what was published, with [ours] where the claim itself is a goal of this project."""
    is_ours = claim.source.startswith(("[ours]", "ours"))
    return " ".join(filter(None, [claim.published, "[ours]" if is_ours else ""]))


def _lead(judgements: Sequence[Judgement], seeds: int) -> str:
    """How the figures of a page are to be read."""
    if any(each.expect.interval for judgement in judgements for each in judgement.findings):
        return (
            f"Figures are means over {seeds} seeds with their 95 % intervals (Student's t); differences are between "
            "runs of the same seed, which have initial parameters and order of data in common. Verdicts are computed "
            "from the intervals: <b>shown</b> if all expectations hold, <b>not shown</b> if none does, "
            "<b>unresolved</b> where an interval holds the limit. Of bytes and times medians decide, which have the "
            "smallest and the largest beside them."
        )
    return (
        f"Figures are medians of {seeds} seeds, with the smallest and the largest where these differ. Verdicts are "
        "computed from them: <b>shown</b> if all expectations hold, <b>not shown</b> if none does. Simulated, not "
        "measured on hardware. Baselines of the TCP family are shown with both minimum time-outs."
    )


def _effects(judgement: Judgement) -> list[str]:
    """A table of what each arm changes."""
    effects = effects_of(judgement)
    if not effects:
        return []
    words = escape(WORDS[shown_of(judgement.claim)])
    heads = ("setting", "arm", words, "less that of the baseline", "from zero")
    lines = ["<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for each in effects:
        lines.append(
            f"<tr><td>{escape(each.setting)}</td><td>{escape(label_of(each.policy))}</td>"
            f"<td class='n'>{each.figure.interval_text('share')}</td>"
            f"<td class='n'>{each.change.interval_text('points')}</td>"
            f"<td>{'resolved' if each.resolved else 'unresolved'}</td></tr>"
        )
    return [*lines, "</table>"]


def _section(judgement: Judgement, figure: Figure | None) -> list[str]:
    claim = judgement.claim
    lines = [
        f"<h2 id='{claim.id}'>{claim.id}: {escape(claim.sentence)}</h2>",
        f"<p>Published: {escape(claim.published)} <span class='remark'>({escape(claim.source)})</span></p>",
        f"<p>{_verdict(judgement)}. {prose(judgement.reason)}</p>",
    ]
    if claim.remark:
        lines.append(f"<p class='remark'>{prose(claim.remark)}</p>")
    if judgement.findings:
        lines.append("<table><tr><th>figure</th><th>measured</th><th>expected</th><th></th></tr>")
        for each in judgement.findings:
            what = f"{each.expect.text}{f' ({each.expect.condition})' if each.expect.condition else ''}"
            lines.append(
                f"<tr><td>{escape(what)}</td><td class='n'>{each.measured}</td>"
                f"<td class='n'>{escape(each.wanted)}</td><td>{HOLDS[each.holds]}"
                f"{f'; time-outs: {escape(each.because)}' if each.because else ''}</td></tr>"
            )
        lines.append("</table>")
    if figure is not None:
        data = base64.b64encode(png_of(figure)).decode()
        words = f"{WORDS[claim.shown]} by policy and setting"
        lines.append(f"<img alt='{escape(words)}' src='data:image/png;base64,{data}'>")
    return [*lines, *_effects(judgement), *_everything(judgement)]


def _everything(judgement: Judgement) -> list[str]:
    """A table of all measures behind the verdict."""
    names = [name for name in WORDS if any(name in each for each in judgement.figures.values())]
    lines = ["<details><summary>all measures</summary><table><tr><th>setting</th><th>policy</th>"]
    lines[0] += "".join(f"<th>{escape(WORDS[name])}</th>" for name in names) + "</tr>"
    for setting, policy in dict.fromkeys((s, p) for s, p, _ in judgement.figures):
        cells = ""
        for name in names:
            spread = judgement.spread(setting, policy, name)
            cells += f"<td class='n'>{value_text(spread.median, unit_of(name)) if spread else '-'}</td>"
        lines.append(f"<tr><td>{escape(setting)}</td><td>{escape(label_of(policy))}</td>{cells}</tr>")
    return [*lines, "</table></details>"]


def unit_of(measure: str) -> str:
    """How a measure is printed."""
    other = {
        "broken": "count", "worst": "ratio", "magnitude": "ratio", "step_bytes": "count", "apart": "count",
        "pulled": "count", "traffic": "count", "steps_to": "count", "apart_max": "count", "loss": "ratio",
        "runs": "ratio", "together": "ratio", "worst_place": "ratio",
    }  # fmt: skip
    return "time" if measure in TIMES else other.get(measure, "share")


def _verdict(judgement: Judgement) -> str:
    return f"<b class='{CLASSES.get(judgement.verdict, 'not')}'>{judgement.verdict}</b>"


def png_of(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, "picture.png")
    return buffer.getvalue()


def as_dict(judgements: Sequence[Judgement]) -> dict[str, object]:
    """Plain values, for JSON."""
    found: list[Json] = []
    for each in judgements:
        claim = each.claim
        found.append(
            {
                "id": claim.id,
                "source": claim.source,
                "claim": claim.sentence,
                "published": claim.published,
                "verdict": each.verdict,
                "reason": each.reason,
                "remark": claim.remark,
                "shown": claim.shown,
                "expectations": [
                    {
                        "text": one.expect.text,
                        "condition": one.expect.condition,
                        "unit": one.expect.unit,
                        "low": one.expect.low,
                        "high": one.expect.high,
                        "median": _number(one.spread.median) if one.spread.values else None,
                        "absent": one.absent,
                        "values": [_number(each) for each in one.spread.values],
                        "holds": one.holds,
                        "because": one.because,
                    }
                    for one in each.findings
                ],
                "effects": [
                    {
                        "setting": one.setting,
                        "policy": one.policy,
                        "label": label_of(one.policy),
                        "measure": shown_of(claim),
                        "mean": one.figure.mean,
                        "change": one.change.mean,
                        "interval": list(one.interval) if len(one.change.values) > 1 else None,
                        "changes": list(one.change.values),
                        "resolved": one.resolved,
                    }
                    for one in effects_of(each)
                ],
                "measures": [
                    {"setting": setting, "policy": policy, "seed": seed}
                    | {name: _number(value) for name, value in values.items()}
                    for (setting, policy, seed), values in each.figures.items()
                ],
            }
        )
    return {"format": 1, "claims": found}


def _number(value: float) -> float | None:
    """A number that JSON has; none for what is never reached."""
    return value if isfinite(value) else None
