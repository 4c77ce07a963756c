"""The pages as what can be run and compared: blocks of commands and code, shown output, tables of figures.

Everything in a page that looks like commands or Python is run by `tests/end_to_end/test_pages.py`, block by block in
the order of the page and in one folder, unless a comment right before the block says otherwise:

    <!-- not run: trains for hours -->          why a block of commands or code is not run
    <!-- first: gradwire run demo --out x -->   a command to be run before it, which the page does not show
    <!-- file: small.toml -->                   the block is the content of this file, for what comes after it
    <!-- with: GRADWIRE_CACHE=cache -->         a variable of the environment, from this block on

Output that is shown is compared. Below a line `$ command` stands its output; `...` in it means anything. A table, as
Markdown or as it is printed, is bound to a command by a comment before it, and each of its cells has to be what the
command prints in the row and the column of the same names (or the other way round, with rows and columns exchanged):

    <!-- figures: gradwire compare demo -->
    <!-- figures: gradwire compare demo {} | iteration time, mean -->
                                                a command for every row: {} becomes a --set for each `key=value` of its
                                                first cell, and the columns have the named row of what is printed
    <!-- figures by hand: gradwire ... -->      only `python -m docs.refresh --all` runs it: it takes minutes

Commands that need something of the machine say so, `<!-- needs: virtual -->`: torch, or the kernel for virtual time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / room / "README.md" for room in ("sim", "emu", "benchmarks", "traces/bundled")),
]  # fmt: skip
PROGRAMS = ("gradwire", "make", "pip", "apt", "python", ".venv/bin/python", "torchrun", "printf", "$")
"""What the first word of a block of commands may be."""
WORDS = ("not run", "first", "file", "with", "needs", "figures by hand", "figures")
MARK = re.compile(rf"<!-- ({'|'.join(WORDS)}): (.*?) -->")
OPTION = re.compile(r"`([\w.\[\]]+=[^`]+)`")


@dataclass
class Block:
    """One block of a page: `lines[begin:end]` of it, without fences and indentation in `lines`.

    `kind` is sh, python, toml, table (Markdown), or text for everything else; `marks` what the comments before it say.
    """

    page: Path
    begin: int
    end: int
    kind: str
    lines: list[str]
    indent: str = ""
    marks: dict[str, list[str]] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.begin + 1}"

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def needs(self) -> list[str]:
        """What the machine has to have for it."""
        return self.marks.get("needs", [])

    def commands(self) -> Iterator[tuple[str, list[str] | None]]:
        """The commands of a block, each with the output that is shown; None where none is."""
        if not any(line.startswith("$ ") for line in self.lines):
            yield from ((line, None) for line in self.lines if line.strip() and not line.startswith("#"))
            return
        command, shown = "", list[str]()
        for line in [*self.lines, "$ "]:
            if line.startswith("$ "):
                if command:
                    yield command, shown
                command, shown = line[2:], []
            else:
                shown.append(line)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    lines = page.read_text(encoding="utf-8").split("\n")
    found: list[Block] = []
    marks: dict[str, list[str]] = {}
    number = 0
    while number < len(lines):
        block = _block(page, lines, number)
        if block is not None:
            block.marks, marks = marks, {}
            found.append(block)
            number = block.end
            continue
        said = MARK.findall(lines[number])
        for word, what in said:
            marks.setdefault(word, []).append(what)
        if lines[number].strip() and not said:
            marks = {}
        number += 1
    return found


def _block(page: Path, lines: list[str], begin: int) -> Block | None:
    """The block that begins at a line, if one does."""
    line = lines[begin]
    if line.startswith("```"):
        end = next(number for number in range(begin + 1, len(lines)) if lines[number].startswith("```")) + 1
        inner = lines[begin + 1 : end - 1]
        kind = {"": "text", "sh": "sh", "python": "python", "toml": "toml"}.get(line[3:].strip(), "text")
        return Block(page, begin, end, _kind(inner) if kind == "text" else kind, inner)
    if line.startswith("|"):
        end = _while(lines, begin, lambda each: each.startswith("|"))
        return Block(page, begin, end, "table", lines[begin:end])
    indent = line[: len(line) - len(line.lstrip(" "))]
    after = begin == 0 or not lines[begin - 1].strip() or bool(MARK.search(lines[begin - 1]))
    if len(indent) >= 4 and line.strip() and after:
        end = _while(lines, begin, lambda each: each.startswith(indent) or not each.strip())
        while not lines[end - 1].strip():
            end -= 1
        inner = [each[len(indent) :] for each in lines[begin:end]]
        return Block(page, begin, end, _kind(inner), inner, indent)
    return None


def _while(lines: list[str], begin: int, holds: object) -> int:
    end = begin
    while end < len(lines) and holds(lines[end]):  # type: ignore[operator]
        end += 1
    return end


def _kind(lines: list[str]) -> str:
    first = lines[0].split() if lines and lines[0].strip() else [""]
    return "sh" if first[0] in PROGRAMS else "text"


def cells(line: str) -> list[str]:
    """The cells of one line of a table, of Markdown or as it is printed, without emphasis."""
    inner = line.strip().strip("|") if line.startswith("|") else line
    return [" ".join(cell.replace("**", "").split()) for cell in inner.split("|")]


def is_rule(line: str) -> bool:
    """Whether a line of a table only separates its head from its rows."""
    return bool(re.fullmatch(r"[|\-+: ]+", line)) and "-" in line


def options(cell: str) -> list[str]:
    """Every `key=value` of a cell, as --set."""
    return [word for each in OPTION.findall(cell) for word in ("--set", each)]
