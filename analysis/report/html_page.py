"""Builds HTML elements (tables, charts, code, lists) and joins sections into one page with style and scripts.

External text is escaped. The page's content policy allows only what is inside of it, so a browser makes no network
request. The same sections give the same bytes: the page has no date.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources

from gradwire.analysis.comparison.tables import Grid, TableRow, html_table
from gradwire.analysis.palette import style_sheet
from gradwire.analysis.report.charts import Chart, rounded
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.version import VERSION

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src {}; script-src {}"
"""Content policy: style and scripts are allowed by their hashes [CSP Level 3, hash-source]."""
SCRIPTS = ("look.js", "chart.js", "lanes.js", "timeline.js", "page.js")
LIVE_SCRIPTS = ("look.js", "chart.js", "page.js", "live.js")
"""Scripts of a page that reloads itself, without timelines."""
SAMPLES = '<div class="paper" hidden></div>'
"""An element with the colours of print, read by the script before it draws for the printer."""


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


def grid(grid: Grid, most: int = 500, words: bool = False) -> str:
    """Return a grid as a table; of a long one the beginning."""
    rows = [TableRow(row[0], row[1:]) for row in grid.rows[:most]]
    more = f" (the first {most:,} of {len(grid.rows):,} lines)" if len(grid.rows) > most else ""
    return table(grid.title + more, grid.head[1:], rows, grid.head[0], words)


def data(value: Json) -> str:
    """Return plain values for the script, escaped so that no text can end the element."""
    text = json.dumps(rounded(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def chart(chart: Chart) -> str:
    """Return a figure that the script draws."""
    title = escape(chart.title)
    return (
        f'<figure class="chart" aria-label="{title}"><figcaption><b>{title}</b> {prose(chart.says)}</figcaption>'
        f"{data(chart.as_dict())}</figure>"
    )


def timeline(runs: Sequence[Json]) -> str:
    """Return a figure of lanes, showing one run at a time. `runs` : from `lanes_of`, each with a `name`."""
    if not runs:
        return ""
    return f'<figure class="timeline" aria-label="timeline">{data({"runs": list(runs)})}</figure>'


def html_page(title: str, sections: Sequence[PageSection], command: str = "", scripts: Sequence[str] = SCRIPTS) -> str:
    """Return the whole file. `command` : its origin, for the footer. `scripts` : files of this package."""
    alone = len(sections) == 1 and sections[0].title == title  # the section needs no heading of its own
    body = []
    for number, section in enumerate(sections, 1):
        lead = f'<p class="lead">{prose(section.lead)}</p>' if section.lead else ""
        head = "" if alone else f'<h2>{escape(section.title)} <span class="kind">{escape(section.kind)}</span></h2>'
        body += [f'<section id="s{number}">{head}{lead}', *section.parts, "</section>"]
    kind = f' <span class="kind">{escape(sections[0].kind)}</span>' if alone else ""
    style, texts = style_sheet() + _file("page.css"), [_file(name) for name in scripts]
    policy = POLICY.format(_hashed(style), " ".join(map(_hashed, texts)))
    by = f" by <code>{escape(command)}</code>" if command else ""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{style}</style></head><body>{SAMPLES}",
            f'<a class="skip" href="#s1">to the content</a><header><h1>{escape(title)}{kind}</h1>',
            '<div class="tools"><button type="button" id="theme">dark</button></div></header>',
            _contents(sections),
            "<main>",
            *body,
            "</main>",
            f"<footer><p>Written{by}, gradwire {VERSION}. This file needs no network: figures, script and style are "
            "inside.</p></footer>",
            '<div id="tip" role="status" aria-live="polite" hidden></div>',
            "<noscript><p>Plots and the timeline need JavaScript; sentences and tables do not.</p></noscript>",
            *(f"<script>{text}</script>" for text in texts),
            "</body></html>",
            "",
        ]
    )


def _contents(sections: Sequence[PageSection]) -> str:
    if len(sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#s{number}">{escape(section.title)}</a> <span class="kind">{escape(section.kind)}</span></li>'
        for number, section in enumerate(sections, 1)
    )
    return f'<nav aria-label="contents"><ol>{items}</ol></nav>'


def _hashed(text: str) -> str:
    """Return the source expression that allows exactly this text between its tags."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _file(name: str) -> str:
    """Return a file of this package, checked not to contain a closing tag."""
    text = (resources.files(__package__) / name).read_text(encoding="utf-8")
    assert "</" not in text, name
    return text
