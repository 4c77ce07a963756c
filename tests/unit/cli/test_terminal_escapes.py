"""What a terminal would obey never reaches it from a name: on stdout, on stderr, in tables and in JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from output_cases import ROOT, SMALL, gradwire_command

from gradwire.scenarios.terminal_text import EscapingStream, console, printable, unescaped

HOSTILE = "a\x1b]0;owned\x07b\u202ec\x9bd\u2066e\x1b[8mf"
ESCAPED = r"a\x1b]0;owned\x07b\u202ec\x9bd\u2066e\x1b[8mf"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BAD = re.compile("[^\\x20-\\x7e\\n\\t\xa0-\\u200a\\u2010-\\u2027\\u2030-\\u205f\\u2070-\uffff]")
"""Characters that are not shown, but for spaces: C0 and C1 controls, marks of direction, isolates."""


@pytest.mark.parametrize("text, shown", [
    (HOSTILE, ESCAPED), ("ends\nand\ttabs stay", "ends\nand\ttabs stay"), ("3\N{NARROW NO-BREAK SPACE}µs", "3\u202fµs"),
    ("carriage\rreturn", r"carriage\rreturn"), ("\ud800", r"\ud800"), ("\u200f\u061c", r"\u200f\u061c"), ("€日本", "€日本"),
])  # fmt: skip
def test_unprintable_characters_are_escaped(text, shown):
    assert printable(text) == shown


def test_stream_escapes_names_and_keeps_rich_colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no colours
    bytes_ = io.BytesIO()
    stream = EscapingStream(bytes_, encoding="utf-8")
    assert stream.write(HOSTILE) == len(HOSTILE)
    unescaped(stream).write("\x1b[1mbold")
    print(HOSTILE, file=stream, flush=True)
    assert bytes_.getvalue().decode() == f"{ESCAPED}\x1b[1mbold{ESCAPED}\n"
    shown = console(file=io.StringIO(), force_terminal=True, width=200)
    from rich.table import Table

    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    shown.print(table)
    shown.print(HOSTILE, style="bold")
    text = shown.file.getvalue()
    assert "\x1b[" in text, "colours are there"
    plain = COLOUR.sub("", text)
    assert not BAD.search(plain) and plain.count(ESCAPED) == 4
    assert "\x1b[8m" not in text


def test_all_tables_use_the_escaping_console():
    """Only one module constructs Rich's own Console; others may annotate with it."""
    own = {"scenarios/terminal_text.py"}
    rooms = ("analysis", "emu", "gradwire/cli", "scenarios", "sim", "traces", "training", "experiment")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    makers = {str(path.relative_to(ROOT)) for path in files if re.search(r"(?<![\w.])Console\(", path.read_text())}
    assert len(files) > 300 and makers - own == set()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A Result whose names are hostile: of the run, its policy, a port."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("hostile")
    (folder / "small.toml").write_text(SMALL)
    done = subprocess.run(
        gradwire_command("run", "small.toml", "--out", "result"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = folder / "result"
    summary = json.loads((result / "result.json").read_text())
    summary |= {"name": HOSTILE, "policy": HOSTILE, "policy_label": HOSTILE}
    (result / "result.json").write_text(json.dumps(summary))
    for file in result.glob("*.parquet"):
        table = pyarrow.parquet.read_table(file)
        for number, field in enumerate(table.schema):
            if pyarrow.types.is_string(field.type) and field.name in ("port", "node", "kind", "job", "name"):
                column = pyarrow.array([HOSTILE] * len(table), pyarrow.string())
                table = table.set_column(number, field.name, column)
        pyarrow.parquet.write_table(table, file)
    return folder


def on_a_terminal(folder: Path, *arguments: str) -> str:
    """What a command writes to a terminal of its own."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        gradwire_command(*arguments), cwd=folder, stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(follower)
    parts = []
    while True:
        try:
            data = os.read(leader, 1 << 16)
        except OSError:
            break
        if not data:
            break
        parts.append(data)
    process.wait(60)
    os.close(leader)
    return b"".join(parts).decode()


COMMANDS = [("compare", "result"), ("telemetry", "result"), ("compare", "result", "--json"),
            ("telemetry", "result", "--json"), ("tensors", "result"), ("run", "\x1b]0;x\x07.toml"),
            ("check", "\u202e"), ("trace", "info", "\x1b]0;x\x07")]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=ascii)
def test_commands_print_no_control_characters(hostile, command):
    done = subprocess.run(gradwire_command(*command), cwd=hostile, capture_output=True, timeout=120)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert out + err and not BAD.search(out) and not BAD.search(err)
    if done.returncode == 0:
        name = json.dumps(HOSTILE)[1:-1] if "--json" in command else ESCAPED
        assert name[:12] in out.replace("\n", "")


@pytest.mark.parametrize("command", COMMANDS[:2], ids=ascii)
def test_commands_print_no_control_characters_on_a_terminal(hostile, command):
    text = on_a_terminal(hostile, *command).replace("\r\n", "\n")
    assert r"a\x1b]0;" in text
    assert not BAD.search(re.sub(r"\x1b\[(?!8m)[0-9;?]*[A-Za-z]", "", text)), "colours and the cursor are Rich's"


def test_help_has_colours_on_a_terminal(tmp_path):
    assert COLOUR.search(on_a_terminal(tmp_path, "run", "--help"))
