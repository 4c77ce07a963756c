"""MkDocs hooks of the site: pages that are made when it is built, and links that leave docs/.

* Files of the repository that a page links to become pages below `repository/`: notebooks with their outputs, code as
  a listing, folders as a list of links. So the site needs no address of a repository.
* `reference/cli.md` lists every command with its options, `reference/api.md` the public names of gradwire.
* State diagrams, which need a program from elsewhere to be drawn, become tables.

`mkdocs.yml` names this file as a hook; mkdocstrings loads `Docstrings` from it.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gradwire
from gradwire import cli

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDER = "repository"
"""Where the site keeps pages of files outside of docs/."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(?=#[^)\s]*\)|\))")
"""The target of a link or an image, as far as it is a file."""
LANGUAGES = {"py": "python", "toml": "toml", "c": "c", "csv": "text", "et": "text"}
STATES = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^ +(\S+) --> (\S+?)(?:: (.*))?$", re.MULTILINE)
EXTENSION_POINTS = {
    "Network": [
        "gradwire.scenarios.schema.network.transport_base.Transport",
        "gradwire.protocols.load_balancers.base.Balancer",
        "gradwire.scenarios.schema.network.topology.TopologyTable",
        "gradwire.scenarios.schema.network.traffic.TrafficTable",
        "gradwire.scenarios.schema.network.fault.LinkFault",
        "gradwire.scenarios.schema.network.fault.SwitchFault",
        "gradwire.scenarios.schema.network.fault.HostFault",
        "gradwire.sim.processes.user_process.Wires",
    ],
    "Jobs and training": [
        "gradwire.scenarios.schema.job.exchange.ExchangeTable",
        "gradwire.workload.collectives.common.base.Exchange",
        "gradwire.workload.collectives.common.staged_table.StagedTable",
        "gradwire.scenarios.schema.job.scheduler.SchedulerTable",
        "gradwire.training.reducers.base.Reducer",
        "gradwire.training.systems.base.System",
        "gradwire.traces.formats.base.Format",
    ],
    "Tests of protocols": [
        f"{importlib.import_module('gradwire.testing').__dict__[name].__module__}.{name}"
        for name in ("FlowHarness", "Case", "MessageSpec", "run_engine", "run_oracle", "agree", "agree_on")
    ],
}
"""Classes that a component of a user is derived from, and the tools that test it."""


# --- Files outside of docs/ ------------------------------------------------------------------------------------------


def links(text: str, source: Path) -> Iterator[tuple[str, Path]]:
    """Yield the targets of a page's links and the files that they name, where there are such files."""
    for target in LINK.findall(text):
        path = Path(os.path.normpath(source.parent / target))
        if path.exists() and path.is_relative_to(ROOT):
            yield target, path


def page_of(path: Path) -> str:
    """Return where the site has a file or a folder, relative to its top."""
    if path.is_relative_to(DOCS) and path.suffix != ".py":
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT)
    if path.is_dir():
        return f"{FOLDER}/{(name / 'README.md').as_posix()}"
    plain = (
        name if name.suffix == ".md" else name.with_suffix(".md" if name.suffix == ".ipynb" else f"{name.suffix}.md")
    )
    return f"{FOLDER}/{plain.as_posix()}"


@cache
def text_of(path: Path) -> str:
    """Return a file or a folder as a page of Markdown."""
    name = path.relative_to(ROOT).as_posix()
    hidden = "---\nsearch:\n  exclude: true\n---\n\n"
    if path.is_dir() and (path / "README.md").exists():
        return (path / "README.md").read_text("utf-8")
    if path.is_dir():
        entries = sorted(each for each in path.iterdir() if not each.name.startswith((".", "__")))
        return f"{hidden}# {name}\n\n" + "".join(f"* [{each.name}]({each.name})\n" for each in entries)
    if path.suffix == ".md":
        return path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return notebook(path)[0]
    code = path.read_text("utf-8").rstrip("\n")
    return f"{hidden}# {path.name}\n\n`{name}`\n\n~~~~{LANGUAGES.get(path.suffix[1:], 'text')}\n{code}\n~~~~\n"


@cache
def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures among its outputs by name."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(path))
    text = re.sub(r"<style.*?</style>\n?", "", text, flags=re.DOTALL)
    return text, resources.get("outputs", {})


def outside_files(pages: dict[str, Path]) -> dict[str, Path]:
    """Return the files that pages link to and that docs/ does not have, and those that these link to, by page."""
    found: dict[str, Path] = {}
    waiting = list(pages.values())
    while waiting:
        source = waiting.pop()
        as_file = source / "README.md" if source.is_dir() else source
        for _, path in links(text_of(source), as_file):
            uri = page_of(path)
            if uri.startswith(FOLDER) and uri not in found and path.suffix != ".png":
                found[uri] = path
                if path.suffix in (".md", "") and path.name != "LICENSE":
                    waiting.append(path)
    return found


# --- Generated references --------------------------------------------------------------------------------------------


def command_reference() -> str:
    """Return a page of every command, from the descriptions that `--help` prints."""
    app = typer.main.get_command(cli.app)
    lines = ["# Commands", "", "Every command and option, as `--help` prints them.", ""]
    for words, command in commands_of(app, ["gradwire"]):
        lines += command_section(words, command)
    return "\n".join(lines)


def commands_of(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield a command and those below it, each with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from commands_of(below, [*words, name])


def command_section(words: list[str], command: Any) -> list[str]:
    """Return the section of one command: usage, description, example, arguments and options."""
    context = command.context_class(command, info_name=" ".join(words))
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    level = "##" if len(words) < 3 else "###"
    lines = [f"{level} {' '.join(words)}", "", *plain(command.help), "", f"    {usage}", ""]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if getattr(command, "commands", None):
        lines += ["| command | description |", "|---|---|"]
        for name, below in command.commands.items():
            if not below.hidden:
                place = "-".join([*words, name])
                lines.append(f"| [`{name}`](#{place}) | {cell(below.get_short_help_str(400))} |")
        lines.append("")
    if records:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{name.replace('|', '¦')}` | {cell(words)} |" for name, words in records]
        lines.append("")
    if command.epilog:
        lines += [command.epilog.split(": ")[0] + ":", "", f"    {command.epilog.split(': ', 1)[1]}", ""]
    return lines


def plain(text: str | None) -> list[str]:
    """Return a description without the marks that keep its lines apart on a terminal."""
    return (text or "").replace("\b", "").strip().splitlines()


def cell(text: str) -> str:
    """Return a description as one cell of a table, with its default and range in italics."""
    escaped = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"\[([^\[\]]+)\]$", r"*(\1)*", escaped)


def python_reference() -> str:
    """Return a page of the public names, which mkdocstrings fills in from their docstrings."""
    intro = "Every public name of `gradwire`, from its docstring. [python.md](../python.md) is a guide."
    lines = ["# Python API", "", intro, ""]
    groups = {"Functions": str.islower, "Classes": lambda name: not name.islower() and not name.endswith("Error")}
    public = {**gradwire.PUBLIC, **gradwire.OPTIONAL}
    for heading, chosen in {**groups, "Errors": lambda name: name.endswith("Error")}.items():
        names = [name for name in public if chosen(name)]
        lines += [f"## {heading}", "", *(line for name in names for line in entry(f"{public[name]}.{name}", name))]
    lines += ["## Extension points", "", "[extending.md](../extending.md) shows components of your own.", ""]
    for heading, names in EXTENSION_POINTS.items():
        lines += [f"### {heading}", "", *(line for name in names for line in entry(name, name, 4))]
    return "\n".join(lines)


def entry(place: str, shown: str, level: int = 3) -> list[str]:
    """Return the lines that have mkdocstrings describe an object."""
    name = shown.rpartition(".")[2]
    anchor = [f'<a id="gradwire.{name}"></a>', ""] if shown == name else []
    return [*anchor, f"::: {place}", "    options:", f"        heading_level: {level}", ""]


ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.*)$")


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Makes Markdown of docstrings, whose arguments are lines such as `threads : of the simulator`."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """Return a docstring with its arguments, and its lines that begin with Raises, as items of lists."""
    lines: list[str] = []
    for line in text.split("\n"):
        argument = ARGUMENT.match(line)
        item = f"* `{argument[1]}`: {argument[2]}" if argument else f"* {line}" if line.startswith("Raises ") else ""
        if item and lines and lines[-1] and not lines[-1].startswith(("* ", "    ")):
            lines.append("")
        lines.append(item or line)
    return "\n".join(lines)


# --- Hooks of MkDocs -------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of docs/ holds."""
    pages = {each.src_uri: DOCS / each.src_uri for each in files.documentation_pages()}
    config.extra["sources"] = dict(pages)
    for uri, path in outside_files({**pages, **{f"nav {uri}": path for uri, path in named_in(config.nav)}}).items():
        config.extra["sources"][uri] = path / "README.md" if path.is_dir() else path
        add(files, config, uri, text_of(path))
        for name, picture in notebook(path)[1].items() if path.suffix == ".ipynb" else ():
            add(files, config, f"{uri.rpartition('/')[0]}/{name}", picture)
    for uri, path in named_in(config.nav):
        if uri not in config.extra["sources"]:
            config.extra["sources"][uri] = path
            add(files, config, uri, text_of(path))
    add(files, config, "reference/cli.md", command_reference())
    add(files, config, "reference/api.md", python_reference())
    return files


def named_in(nav: Any) -> Iterator[tuple[str, Path]]:
    """Yield the pages below `repository/` that the navigation names, and their files."""
    for uri in re.findall(rf"'({FOLDER}/[^']+)'", str(nav)):
        plain = ROOT / uri.removeprefix(f"{FOLDER}/")
        ipynb = plain.with_suffix(".ipynb")
        yield uri, ipynb if ipynb.exists() else plain


def add(files: Files, config: MkDocsConfig, uri: str, content: str | bytes) -> None:
    """Add a file that stands nowhere."""
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the site's own pages, and turn state diagrams into tables."""
    markdown = STATES.sub(state_table, markdown)
    source = config.extra["sources"].get(page.file.src_uri)
    if source is None:
        return markdown
    here = Path(page.file.src_uri).parent

    def target(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / match[1]))
        uri = page_of(path) if path.is_relative_to(ROOT) else ""
        if files.get_file_from_path(uri) is None:
            return match[1]
        return Path(os.path.relpath(uri, here)).as_posix()

    return LINK.sub(target, markdown)


def state_table(match: re.Match[str]) -> str:
    """Return the transitions of a state diagram as a table."""
    rows = ("| " + " | ".join(step) + " |" for step in STEP.findall(match[1].replace("[*] -->", "start -->")))
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows]).replace("| [*] |", "| end |")
