"""Elements of a page as HTML: sections, prose, lists, code, tables and figures. External text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from gradwire.analysis.comparison.tables import Grid, TableRow, html_table
from gradwire.analysis.report.charts import Chart, rounded
from gradwire.scenarios.json_data import Json


@dataclass
class PageSection:
    """A section of the page: its `title`, `kind` of subject, summary (`lead`), and pieces of HTML."""

    title: str
    kind: str
    lead: str = ""
    parts: list[str] = field(default_factory=list)

    def add(self, *parts: str) -> None:
        """Append all pieces that are not empty."""
        self.parts += [part for part in parts if part]


def prose(text: str) -> str:
    """Return text as HTML: backticks mark code, double stars bold."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", marked)


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, with an optional class; empty for no text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{prose(text)}</p>" if text else ""


def bullet_list(sentences: Iterable[str]) -> str:
    """Return a list of sentences; empty for none."""
    items = "".join(f"<li>{prose(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def heading(text: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{escape(text)}</h3>"


def code(text: str) -> str:
    """Return lines of code with a button that copies them."""
    return f'<div class="code"><pre tabindex="0">{escape(text)}</pre></div>'


def collapsible(title: str, inner: str) -> str:
    """Return a collapsed element that opens on click."""
    return f"<details><summary>{escape(title)}</summary>{inner}</details>" if inner else ""


def table(title: str, names: Sequence[str], rows: Sequence[TableRow], corner: str = "", words: bool = False) -> str:
    """Return a table in a frame that scrolls if it is wide. `words` : its cells are text, not figures."""
    inner = bare_table(title, names, rows, corner)
    kind = "table words" if words else "table"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(title or "table")}">{inner}</div>'


def bare_table(title: str, names: Sequence[str], rows: Sequence[TableRow], corner: str = "") -> str:
    """Return a table without its frame and without inline styles, which the page's policy forbids."""
    return html_table(title, names, rows, corner).replace(' style="text-align: right"', "")


def grid(found: Grid, most: int = 500, words: bool = False) -> str:
    """Return a grid as a table; of a long one the beginning."""
    rows = [TableRow(row[0], row[1:]) for row in found.rows[:most]]
    more = f" (the first {most:,} of {len(found.rows):,} lines)" if len(found.rows) > most else ""
    return table(found.title + more, found.head[1:], rows, found.head[0], words)


def data(value: Json) -> str:
    """Return plain values for the script, escaped so that no text can end the element."""
    text = json.dumps(rounded(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def chart(found: Chart) -> str:
    """Return a figure that the script draws."""
    title = escape(found.title)
    return (
        f'<figure class="chart" aria-label="{title}"><figcaption><b>{title}</b> {prose(found.says)}</figcaption>'
        f"{data(found.as_dict())}</figure>"
    )


def timeline(runs: Sequence[Json]) -> str:
    """Return a figure of lanes, showing one run at a time. `runs` : from `lanes_of`, each with a `name`."""
    if not runs:
        return ""
    return f'<figure class="timeline" aria-label="timeline">{data({"runs": list(runs)})}</figure>'
