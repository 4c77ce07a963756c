"""Pieces of a page: sections, prose, lists, code, tables and figures as HTML. What comes from outside is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from gradwire.analysis.html.charts import Chart, rounded
from gradwire.analysis.tables import Grid, Row, html_table
from gradwire.scenarios.json_data import Json


@dataclass
class Section:
    """One thing that is reported on: its `title`, what it is (`kind`), one sentence (`lead`), and pieces of HTML."""

    title: str
    kind: str
    lead: str = ""
    parts: list[str] = field(default_factory=list)

    def add(self, *parts: str) -> None:
        """Add pieces, empty ones not."""
        self.parts += [part for part in parts if part]


def prose(text: str) -> str:
    """Text as HTML: what stands between backticks is code, between two stars bold."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", marked)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, of a class if one is named; nothing for no text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{prose(text)}</p>" if text else ""


def listed(sentences: Iterable[str]) -> str:
    """A list of sentences; nothing for none."""
    items = "".join(f"<li>{prose(each)}</li>" for each in sentences)
    return f"<ul>{items}</ul>" if items else ""


def heading(text: str) -> str:
    """A heading within a section."""
    return f"<h3>{escape(text)}</h3>"


def code(text: str) -> str:
    """Lines to be copied, with a button that does."""
    return f'<div class="code"><pre tabindex="0">{escape(text)}</pre></div>'


def folded(title: str, inner: str) -> str:
    """What is shown when it is asked for."""
    return f"<details><summary>{escape(title)}</summary>{inner}</details>" if inner else ""


def table(title: str, names: Sequence[str], rows: Sequence[Row], corner: str = "", words: bool = False) -> str:
    """A table with a line per `Row`, in a frame that scrolls if it is wide. `words`: its cells are no figures."""
    inner = bare_table(title, names, rows, corner)
    kind = "table words" if words else "table"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(title or "table")}">{inner}</div>'


def bare_table(title: str, names: Sequence[str], rows: Sequence[Row], corner: str = "") -> str:
    """Return a table without its frame. Styles of its own, for notebooks, are not: the page's policy forbids them."""
    return html_table(title, names, rows, corner).replace(' style="text-align: right"', "")


def grid(found: Grid, most: int = 500, words: bool = False) -> str:
    """A table with a line per thing; of a long one the beginning."""
    rows = [Row(row[0], row[1:]) for row in found.rows[:most]]
    more = f" (the first {most:,} of {len(found.rows):,} lines)" if len(found.rows) > most else ""
    return table(found.title + more, found.head[1:], rows, found.head[0], words)


def data(value: Json) -> str:
    """Plain values for the script. No text in them can end the element that they stand in."""
    text = json.dumps(rounded(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def chart(found: Chart) -> str:
    """A figure that the script draws."""
    title = escape(found.title)
    return (
        f'<figure class="chart" aria-label="{title}"><figcaption><b>{title}</b> {prose(found.says)}</figcaption>'
        f"{data(found.as_dict())}</figure>"
    )


def timeline(runs: Sequence[Json]) -> str:
    """A figure of lanes, of which one run is seen at a time. `runs`: see `lanes_of`, each with a `name`."""
    if not runs:
        return ""
    return f'<figure class="timeline" aria-label="timeline">{data({"runs": list(runs)})}</figure>'
