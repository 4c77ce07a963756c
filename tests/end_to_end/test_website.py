"""The docs site is built without warnings and without a network, is complete, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from browser import WAIT_S, Browser, browser_program
from shared import computed_once

import gradwire
from gradwire import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("link", "href")}
"""What a browser fetches by itself when it shows a page."""
NEVER_LOADED = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",  # where a page has a diagram of class `mermaid`: none has
    "https://unpkg.com/resize-observer-polyfill",  # in browsers from before 2020
}
"""Programs from elsewhere that the theme's script names."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built once, with every way to a network closed."""
    pytest.importorskip("mkdocs", reason="builds the site (extra: docs)")

    def build() -> Path:
        folder = tmp_path_factory.mktemp("site")
        closed = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, **closed, "NO_MKDOCS_2_WARNING": "1"}, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return computed_once(tmp_path_factory, "site", build)


class Elements(HTMLParser):
    """The ids of a page, and the addresses in it as (element, attribute, address)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = {name: value or "" for name, value in attrs}
        self.ids |= {words[name] for name in ("id", "name") if name in words}
        self.addresses += [(tag, name, words[name]) for name in ("src", "href", "data") if name in words]


@cache
def parsed(path: Path) -> Elements:
    return Elements(path.read_text(encoding="utf-8"))


def pages_of(site: Path) -> Iterator[tuple[Path, Elements]]:
    for path in sorted(site.rglob("*.html")):
        yield path, parsed(path)


def test_every_page_is_in_the_navigation_and_the_index() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = set(re.findall(r"([\w/.-]+\.md)$", navigation, re.MULTILINE))
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {"README.md", *re.findall(r"\]\(([\w/-]+\.md)", index)}
    assert set(PAGES) - named == set(), "add the page to `nav` at the end of mkdocs.yml"
    assert set(PAGES) - linked == set(), "add the page to a table of docs/README.md"


def test_gallery_shows_every_picture() -> None:
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    pictures = {f"images/{path.name}" for path in (DOCS / "images").glob("*.png")}
    assert pictures - set(re.findall(r'<img src="([^"]+)"', gallery)) == set(), "add the picture to docs/gallery.md"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    found = [
        (path.name, address)
        for path, page in pages_of(site)
        for tag, attribute, address in page.addresses
        if (tag, attribute) in LOADED and urlsplit(address).netloc
    ]
    assert found == []
    for path in site.rglob("*.css"):
        loads = re.findall(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text(encoding="utf-8"))
        assert loads == [], path
    for path in site.rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        programs = set(re.findall(r"[\"'`](https?://[^\"'`\s\\]+(?:\.js|cdn[^\"'`\s\\]*|unpkg[^\"'`\s\\]*))", text))
        programs |= set(re.findall(r"[\"'`](https?://(?:unpkg|cdn)\.[^\"'`\s\\]+)", text))
        assert programs <= NEVER_LOADED, path
    assert not any('class="mermaid"' in path.read_text(encoding="utf-8") for path, _ in pages_of(site))


def test_links_and_images_lead_somewhere(site: Path) -> None:
    wrong = []
    for path, page in pages_of(site):
        if path.name == "404.html":  # its links are those of a server's root
            continue
        for _, _, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or parts.path.startswith("/"):
                continue
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append((path.relative_to(site).as_posix(), address))
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in parsed(target).ids:
                wrong.append((path.relative_to(site).as_posix(), address))
    assert wrong == []


def test_every_page_of_docs_is_a_page_of_the_site(site: Path) -> None:
    built = {path.relative_to(site).with_suffix("").as_posix() for path, _ in pages_of(site)}
    expected = {re.sub(r"README$", "index", page.removesuffix(".md")) for page in PAGES}
    assert expected - built == set()


def test_api_reference_describes_every_public_name(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    sections = {each.split('"')[0]: each for each in re.split(r'<a id="(?=gradwire\.\w+")', text)[1:]}
    names = {f"gradwire.{name}" for name in (*gradwire.PUBLIC, *gradwire.OPTIONAL)}
    assert names - sections.keys() == set()
    assert [name for name in names if 'class="doc ' not in sections[name] or "<p>" not in sections[name]] == []
    assert {f"gradwire.{name}" for name in gradwire.__all__} - names == {"gradwire.__version__"}


def test_command_reference_lists_every_command_and_option(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    sections = {each.split('"')[0]: each for each in re.split(r'<h[23] id="', text)[1:]}
    waiting = [("gradwire", typer.main.get_command(cli.app))]
    count = 0
    while waiting:
        name, command = waiting.pop()
        count += 1
        for parameter in command.params:
            for option in parameter.opts if not parameter.hidden else []:
                assert not option.startswith("--") or option in sections[name], (name, option)
        waiting += [
            (f"{name}-{word}", below) for word, below in getattr(command, "commands", {}).items() if not below.hidden
        ]
    assert count > 30


def test_notebooks_are_shown_with_their_outputs(site: Path) -> None:
    text = (site / "repository" / "examples" / "notebooks" / "what_if.html").read_text(encoding="utf-8")
    assert "ms per iteration" in text and "<table" in text


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser without a network; what is opened in it complains about nothing and asks for no address."""
    program = browser_program()
    if program is None:
        pytest.skip("there is no chromium (Debian: apt install chromium)")
    with Browser(program) as opened:
        yield opened
        assert opened.complaints == []
        assert [address for address in opened.requests if not address.startswith(("file:", "data:"))] == []


def test_pages_fit_a_telephone(site: Path, browser: Browser) -> None:
    """No page is wider than its window: wide tables and code scroll by themselves."""
    wide = {}
    for path, _ in pages_of(site):
        if path.name != "404.html" and ("repository" not in path.parts or path.name == "what_if.html"):
            browser.open(path, wide=400)
            width = browser.run("document.scrollingElement.scrollWidth")
            if width > 400:
                wide[path.name] = width
    assert wide == {}


def test_search_works_in_a_folder(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")
    browser.run("document.querySelector('.md-search__input').focus()")
    for letter in "incast":
        browser.key(letter)
    results = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    until = time.monotonic() + WAIT_S
    while not (links := browser.run(results)):
        assert time.monotonic() < until, "nothing is found"
        time.sleep(0.05)
    assert any("traffic.html" in link for link in links)
