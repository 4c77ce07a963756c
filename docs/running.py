"""Running what the pages show: commands and code in a folder per page, and the tables that commands print."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docs.pages import ROOT, Block, cells, is_rule, options

LIMIT_S = 240
"""No command of a page takes longer; on a machine of its own each takes less than a minute."""
PROGRAMS = {"gradwire": [sys.executable, "-m", "gradwire"], "python": [sys.executable]}


class Wrong(AssertionError):
    """What a page shows is not what happens."""


@dataclass
class Done:
    """What a command printed, stdout and stderr, and how it ended."""

    text: str
    code: int


@dataclass
class Session:
    """A folder in which commands and code run as in a terminal, with this `gradwire`. Commands run once.

    `programs`: what `gradwire` and `python` are there, as words before their arguments. `interpreter`: what runs
    blocks of code, if it is not that `python`.
    """

    folder: Path
    limit_s: float = LIMIT_S
    programs: Mapping[str, Sequence[str]] = field(default_factory=lambda: PROGRAMS)
    interpreter: Sequence[str] = ()
    known: dict[str, Done] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = self.folder / ".programs"
        place.mkdir()
        for name, words in self.programs.items():
            (place / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (place / name).chmod(0o755)
        path = os.environ.get("PATH", "")
        self._environment = {
            **os.environ, "PATH": f"{place}:{path}", "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "dumb",
        }  # fmt: skip

    def set(self, variable: str) -> None:
        """Give what runs from now on a variable of the environment, `NAME=value`."""
        name, value = variable.split("=", 1)
        self._environment[name] = value

    def command(self, line: str) -> Done:
        """Run one line of a shell; the same line is not run twice."""
        if line not in self.known:
            self.known[line] = self._run(["sh", "-c", line], line)
        return self.known[line]

    def python(self, code: str) -> Done:
        return self._run([*(self.interpreter or self.programs["python"]), "-c", code], code.splitlines()[0])

    def _run(self, arguments: list[str], name: str) -> Done:
        done = subprocess.run(
            arguments, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=self.limit_s, check=False,
        )  # fmt: skip
        if "Traceback (most recent call last)" in done.stdout:
            raise Wrong(f"{name}\n{done.stdout}")
        return Done(done.stdout, done.returncode)


def missing(needs: list[str]) -> str:
    """What this machine lacks of what a block needs; empty if nothing."""
    for need in needs:
        if need == "torch" and importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        if need == "scapy" and importlib.util.find_spec("scapy") is None:
            return "scapy is not installed"
        if need == "virtual":
            from gradwire.emu.virtual_time.virtual_machine import kernel_or_error

            try:
                kernel_or_error()
            except Exception as error:
                return str(error)
    return ""


def run_block(session: Session, block: Block) -> None:
    """Do what a block says, as a reader would. Raises `Wrong`."""
    for name in block.marks.get("file", []):
        (session.folder / name).write_text(block.text, encoding="utf-8")
    for variable in block.marks.get("with", []):
        session.set(variable)
    if block.kind not in ("sh", "python") or "not run" in block.marks:
        return
    run_first(session, block)
    if block.kind == "python":
        _expect_success(session.python(block.text), block.lines[0], block)
        return
    for line, shown in block.commands():
        done = session.command(line)
        if shown is None:
            _expect_success(done, line, block)
        elif not matches("\n".join(shown), done.text):
            raise Wrong(f"{block.place}: {line}\nprints\n{done.text}\nand not\n" + "\n".join(shown))


def run_first(session: Session, block: Block) -> None:
    """What has to be there before a block is run, or its command. Raises `Wrong`."""
    for line in block.marks.get("first", []):
        _expect_success(session.command(line), line, block)


def _expect_success(done: Done, line: str, block: Block) -> None:
    if done.code:
        raise Wrong(f"{block.place}: {line}\nends with {done.code}\n{done.text}")


def matches(shown: str, printed: str) -> bool:
    """Whether output is as it is shown, where "..." stands for anything."""
    parts = [re.escape(part.strip()) for part in shown.strip().split("...")]
    return re.fullmatch(".*?".join(parts), printed.strip(), flags=re.DOTALL) is not None


# Figures

Figures = dict[tuple[str, str], str]
"""What stands where: (row, column) -> cell."""


def printed_figures(text: str) -> Figures:
    """Every cell of every table that a command has printed, by the names of its row and its column.

    A row that is indented belongs to the last one that is not: below "push, p50" the row "p99" is "push, p99" and
    "push, p50, p99", and "p99" as well where it is the first of that name.
    """
    found: Figures = {}
    head: list[list[str]] = []
    names: list[str] = []
    above = ""
    for line in text.splitlines():
        if is_rule(line):
            if not names:  # names that are long stand on several lines
                names = [" ".join(" ".join(parts).split()) for parts in zip(*head, strict=True)]
            continue
        row = cells(line)
        if len(row) < 2:
            head, names = [], []  # the next table
            continue
        if not names:
            head = [*head, row] if not head or len(row) == len(head[0]) else []
            continue
        above = above if line.startswith(" ") else row[0]
        for name, cell in zip(names[1:], row[1:], strict=False):
            found.setdefault((row[0], name), cell)
            if above != row[0]:
                found.setdefault((f"{above}, {row[0]}", name), cell)
                found.setdefault((f"{above.rpartition(', ')[0]}, {row[0]}", name), cell)
    return found


def table_commands(block: Block) -> list[tuple[str, int | None]]:
    """The commands that a table of figures is made of, each with the line of the block that it is for (None: all)."""
    words = [*block.marks.get("figures", []), *block.marks.get("figures by hand", [])]
    found: list[tuple[str, int | None]] = []
    for word in words:
        command = word.split(" | ")[0]
        if "{}" not in command:
            found.append((command, None))
            continue
        for number, line in enumerate(block.lines):
            if number > 1:
                changes = shlex.join(options(cells(line)[0]))
                found.append((" ".join(command.replace("{}", changes).split()), number))
    return found


def expected_cells(block: Block, number: int | None, figures: Figures) -> list[tuple[int, int, str, str]]:
    """Every cell of a table as (line, column, shown, printed), of one line only if `number` says so.

    Raises `Wrong` for a cell that has no counterpart in what is printed.
    """
    words = [*block.marks.get("figures", []), *block.marks.get("figures by hand", [])]
    row_name = words[0].split(" | ")[1] if " | " in words[0] else None
    head = cells(block.lines[0])
    found = []
    for line, text in enumerate(block.lines):
        if line == 0 or is_rule(text) or (number is not None and line != number):
            continue
        row = cells(text)
        for column in range(1, len(row)):
            name = row_name or row[0]
            printed = figures.get((name, head[column]), figures.get((head[column], name)))
            if printed is None:
                known = sorted({key[0] for key in figures})
                raise Wrong(f"{block.place}: no {name!r} of {head[column]!r} is printed, but {', '.join(known)}")
            found.append((line, column, row[column], printed))
    return found
