"""HTML page around sections: head, contents, style and script in one file.

Its content policy allows only what is inside of it, so a browser makes no network request. The same sections give the
same bytes: the page has no date.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources

from gradwire.analysis.report.html_elements import PageSection, prose
from gradwire.scenarios.version import VERSION

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src {}; script-src {}"
"""Content policy: style and scripts are allowed by their hashes [CSP Level 3, hash-source]."""
SCRIPTS = ("look.js", "chart.js", "lanes.js", "timeline.js", "page.js")
SAMPLES = "".join(f'<div class="{kind}" hidden></div>' for kind in ("paper",))
"""Elements with the colours of print, read by the script before it draws for the printer."""


def html_page(title: str, sections: Sequence[PageSection], command: str = "") -> str:
    """Return the whole file. `command` : its origin, for the footer."""
    alone = len(sections) == 1 and sections[0].title == title
    body = [_section(number, section, alone) for number, section in enumerate(sections, 1)]
    kind = f' <span class="kind">{escape(sections[0].kind)}</span>' if alone else ""
    style, scripts = _file("page.css"), [_file(name) for name in SCRIPTS]
    policy = POLICY.format(_hashed(style), " ".join(map(_hashed, scripts)))
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
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>",
            "",
        ]
    )


def _section(number: int, section: PageSection, alone: bool) -> str:
    """Return a section; without a heading if the page has the same one."""
    lead = f'<p class="lead">{prose(section.lead)}</p>' if section.lead else ""
    head = "" if alone else f'<h2>{escape(section.title)} <span class="kind">{escape(section.kind)}</span></h2>'
    return "\n".join([f'<section id="s{number}">{head}{lead}', *section.parts, "</section>"])


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


def _file(name: str) -> str:
    """Return a file of this package, checked not to contain a closing tag."""
    text = (resources.files(__package__) / name).read_text(encoding="utf-8")
    assert "</" not in text, name
    return text
