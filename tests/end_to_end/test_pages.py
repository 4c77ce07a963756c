"""The pages say what happens: their commands and code run, shown output is what is printed, figures are those of now.

What a page may leave out, and how a table is bound to a command, is told in `docs/pages.py`. Where figures have moved for
a good reason, `python -m docs.refresh` writes them in.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from warm import Warm

from docs.pages import PAGES, ROOT, Block, blocks
from docs.refresh import _aligned, _with_cell
from docs.running import (
    PROGRAMS,
    Session,
    Wrong,
    expected_cells,
    matches,
    missing,
    printed_figures,
    run_block,
    run_first,
    table_commands,
)
from gradwire import cli

BLOCKS = {page: blocks(page) for page in PAGES}
TO_RUN = [
    page
    for page, found in BLOCKS.items()
    if any(each.kind in ("sh", "python") and "not run" not in each.marks for each in found)
]
COMMANDS = {
    page: {line for each in found if each.kind == "sh" and "not run" not in each.marks for line, _ in each.commands()}
    for page, found in BLOCKS.items()
}
"""Lines of each page that are run as they stand there."""
TABLES = [
    (block, *entry) for page, found in BLOCKS.items() for block in found if "figures" in block.marks
    for entry in table_commands(block) if entry[0] not in COMMANDS[page]
]  # fmt: skip
"""Tables whose commands their pages do not run: the others are compared when they do."""


def session_in(folder: Path, needs: Iterable[str]) -> Session:
    """Commands and code in processes that need not import `gradwire` each, nor torch."""
    warm = (Warm.with_torch() if "torch" in needs and not missing(["torch"]) else Warm.ours()).client()
    return Session(folder, programs={**PROGRAMS, "gradwire": warm}, interpreter=warm)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", TO_RUN, ids=name)
def test_documentation_commands_and_code_run(page: Path, tmp_path: Path):
    session = session_in(tmp_path, {need for block in BLOCKS[page] for need in block.needs})
    skipped = ""
    for block in BLOCKS[page]:
        why = missing(block.needs)
        skipped = skipped or why
        if not why:
            run_block(session, block)
            if "figures" in block.marks:
                for command, number in table_commands(block):
                    if command in COMMANDS[page]:
                        compare_figures(block, command, number, session.command(command).text)
    if skipped:
        pytest.skip(f"all run but what needs something: {skipped}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "command", "number"), TABLES, ids=[f"{block.place}-{number or 'all'}" for block, _, number in TABLES]
)
def test_documented_figures_equal_printed_ones(block: Block, command: str, number: int | None, tmp_path: Path):
    why = missing(block.needs)
    if why:
        pytest.skip(why)
    session = session_in(tmp_path, block.needs)
    run_first(session, block)
    done = session.command(command)
    assert done.code == 0, done.text
    compare_figures(block, command, number, done.text)


def compare_figures(block: Block, command: str, number: int | None, text: str) -> None:
    """Whether a table, or one line of it, has the figures that its command has printed."""
    wrong = [
        f"{block.page.name}:{block.begin + line + 1}: {shown!r}, but {command} prints {printed!r}"
        for line, _, shown, printed in expected_cells(block, number, printed_figures(text))
        if shown != printed
    ]
    assert not wrong, "\n".join([*wrong, "to write it in: python -m docs.refresh"])


def inline_commands() -> list[str]:
    """Every `gradwire ...` in running text."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for each in re.findall(r"`(gradwire [^`]+)`", text.replace("\n", " ")):
            found[each] = None
    for block in (each for found_blocks in BLOCKS.values() for each in found_blocks if each.kind == "sh"):
        for line, _ in block.commands():
            if line.startswith("gradwire "):
                found[line] = None
    return list(found)


@functools.cache
def whole_command() -> Any:
    return typer.main.get_command(cli.app)


@pytest.mark.parametrize("line", inline_commands())
def test_documented_commands_and_options_exist(line: str):
    """Commands that the pages do not run are checked as well."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "..."]
    if "--" in words:  # behind it is a command of the user's own
        words = words[: words.index("--")]
    command = whole_command()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{line}: there is no {words[0]}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in words if word.startswith("--") and word != "--"} <= known


def test_blocks_not_run_state_a_reason():
    for found in BLOCKS.values():
        for block in found:
            assert all(len(why.split()) > 1 for why in block.marks.get("not run", [])), block.place


# The machinery itself: it can fail.

PAGE = """\
# Title

```python
print("hello")
```

    $ echo one two
    one ...

<!-- file: a.txt -->
```toml
x = 1
```

    printf done
    test -e a.txt

<!-- not run: it would never end -->

    python -c 'while True: pass'

<!-- figures: cat table -->
| | A | other B |
|---|---:|---:|
| first | **1 ms** | 2 |
"""

PRINTED = """\
some title
          |    A | other
          |      |     B
----------+------+------
first     | 1 ms |   2
  inner   |    3 |   4
----------+------+----
second    |    5 |   6
  inner   |    7 |   8
"""


def test_page_is_split_into_blocks_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("docs.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("printf done", "printf done"))
    found = blocks(page)
    assert [block.kind for block in found] == ["python", "sh", "toml", "sh", "sh", "table"]
    assert list(found[1].commands()) == [("echo one two", ["one ..."])]
    assert [line for line, _ in found[3].commands()] == ["printf done", "test -e a.txt"]
    assert found[4].marks == {"not run": ["it would never end"]}
    (tmp_path / "run").mkdir()
    session = Session(tmp_path / "run")
    for block in found:
        run_block(session, block)
    found[1].lines[1] = "two"
    with pytest.raises(Wrong, match=r"page.md:7: echo one two\nprints\none two"):
        run_block(session, found[1])
    found[3].lines.append("false")
    with pytest.raises(Wrong, match="false\nends with 1"):
        run_block(session, found[3])


def test_variables_apply_from_their_block_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("docs.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        '    $ printf "<$WITH>"\n    <>\n\n<!-- with: WITH=a=b -->\n\n    $ printf "$WITH"\n    a=b\n\nMore.\n\n'
        '    $ printf "$WITH."\n    a=b.\n'
    )
    (tmp_path / "run").mkdir()
    session = Session(tmp_path / "run")
    for block in blocks(page):
        run_block(session, block)


def test_pages_clear_only_their_own_engine_cache():
    """All tests share the default cache."""
    for found in BLOCKS.values():
        own = False
        for block in found:
            own = own or any(variable.startswith("GRADWIRE_CACHE=") for variable in block.marks.get("with", []))
            assert own or "not run" in block.marks or "cache clear" not in " ".join(block.lines), block.place


def test_tables_are_compared_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("docs.pages.ROOT", tmp_path)
    figures = printed_figures(PRINTED)
    assert figures["first", "A"] == "1 ms"
    assert (figures["inner", "other B"], figures["second, inner", "other B"]) == ("4", "8")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    table = blocks(page)[-1]
    assert expected_cells(table, None, figures) == [(2, 1, "1 ms", "1 ms"), (2, 2, "2", "2")]
    table.lines[2] = "| first | 9 ms | 2 |"
    assert expected_cells(table, None, figures)[0] == (2, 1, "9 ms", "1 ms")
    table.lines[2] = "| third | 9 ms | 2 |"
    with pytest.raises(Wrong, match="no 'third' of 'A' is printed, but"):
        expected_cells(table, None, figures)
    table.lines[:] = ["| | first | second, inner |", "|---|---|---|", "| A | 1 ms | 7 |"]
    assert expected_cells(table, None, figures) == [(2, 1, "1 ms", "1 ms"), (2, 2, "7", "7")]


def test_table_rows_can_give_command_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("docs.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- figures: gradwire compare demo {} | first -->\n| change | A |\n|---|---|\n| none | 1 |\n| `a=b`, `c.d=e f` | 2 |\n"
    )
    (table,) = blocks(page)
    assert table_commands(table) == [
        ("gradwire compare demo", 2), ("gradwire compare demo --set a=b --set 'c.d=e f'", 3),
    ]  # fmt: skip
    assert expected_cells(table, 3, {("first", "A"): "7"}) == [(3, 1, "2", "7")]


def test_shown_output_may_contain_ellipses():
    assert matches("a ... c", "a\nb\n c\n")
    assert not matches("a ... c", "a b d")
    assert matches("(got 1)", "(got 1)") and not matches("a.c", "abc")


def test_table_cells_are_rewritten_in_place():
    assert _with_cell("| a | **1** | 2 |", 1, "3") == "| a | **3** | 2 |"
    assert _with_cell("a   |  1 |  2", 2, "33") == "a   |  1 | 33"
    lines = ["a   |  b", "----+---", "ccc | 10,000"]
    assert _aligned(lines) == ["a   |      b", "----+-------", "ccc | 10,000"]
