"""Write into the pages what their commands print now: `python -m docs.refresh [--all] [PAGE ...]`.

Runs what the pages bind to commands (see `docs.pages`) and rewrites cells of tables and shown output where they differ;
with --all also what takes minutes. What people have written about a figure no program can rewrite: the paragraphs with
figures in the same section are named, to be read again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from docs.pages import PAGES, ROOT, Block, blocks, is_rule
from docs.running import (
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


def main() -> int:
    """Entry point; returns 1 if something could not be refreshed."""
    parser = argparse.ArgumentParser(prog="python -m docs.refresh", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="All pages if absent.")
    parser.add_argument("--all", action="store_true", help="Also what takes minutes.")
    given = parser.parse_args()
    failed = 0
    for page in [path.resolve() for path in given.pages] or PAGES:
        failed += refresh(page, given.all)
    return int(failed > 0)


def refresh(page: Path, everything: bool) -> int:
    """Rewrite one page. Returns how many blocks could not be refreshed."""
    failed = 0
    lines = page.read_text(encoding="utf-8").split("\n")
    changed: list[Block] = []
    with tempfile.TemporaryDirectory(prefix="gradwire-docs-") as folder:
        session = Session(Path(folder), limit_s=3600)
        for block in blocks(page):
            why = missing(block.needs)
            if why:
                print(f"{block.place}: left as it is: {why}")
                continue
            try:
                new = _refreshed(session, block, everything)
            except Wrong as wrong:
                print(wrong, file=sys.stderr)
                failed += 1
                continue
            if new != block.lines:
                fence = not block.indent and block.kind != "table"
                lines[block.begin + fence : block.end - fence] = [(block.indent + line).rstrip() for line in new]
                changed.append(block)
                bold = any("**" in line for line in new)
                print(f"{block.place}: rewritten{', look at what is bold' if bold else ''}")
    if changed:
        page.write_text("\n".join(lines), encoding="utf-8")
        for number in sorted({number for block in changed for number in _prose(lines, block)}):
            print(f"{page.relative_to(ROOT)}:{number + 1}: read again: {lines[number]}")
    return failed


def _refreshed(session: Session, block: Block, everything: bool) -> list[str]:
    """The lines of a block as they should be; as many as before."""
    if "figures" in block.marks or ("figures by hand" in block.marks and everything):
        new = list(block.lines)
        run_first(session, block)
        for command, number in table_commands(block):
            print(f"{block.place}: {command}", flush=True)
            for line, column, shown, printed in expected_cells(
                block, number, printed_figures(session.command(command).text)
            ):
                if shown != printed:
                    new[line] = _with_cell(new[line], column, printed)
        return _aligned(new)
    if block.kind == "sh" and "not run" not in block.marks and any(line.startswith("$ ") for line in block.lines):
        new = []
        for line, shown in block.commands():
            printed = session.command(line).text
            new += [f"$ {line}", *(shown or [])]
            if not matches("\n".join(shown or []), printed):
                raise Wrong(f"{block.place}: {line}\nprints now, please write it in:\n{printed}")
        return new
    if block.kind in ("sh", "python", "toml"):
        run_block(session, block)
    return block.lines


def _with_cell(line: str, column: int, text: str) -> str:
    """A line of a table with one cell written anew; what is bold stays bold."""
    parts = line.split("|")
    place = column + line.startswith("|")
    old = parts[place].strip()
    bold = "**" if old.startswith("**") and old.endswith("**") and not line.startswith(" ") else ""
    parts[place] = f" {bold}{text}{bold}" + (" " if place < len(parts) - 1 else "")
    return "|".join(parts)


def _aligned(lines: list[str]) -> list[str]:
    """A printed table with its columns in line again; Markdown as it is."""
    if lines[0].startswith("|"):
        return lines
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if not is_rule(line)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    new = []
    for line in lines:
        if is_rule(line):
            new.append("+".join("-" * (width + (2 if place else 1)) for place, width in enumerate(widths))[:-1])
        else:
            row = [cell.strip() for cell in line.split("|")]
            first, rest = row[0].ljust(widths[0]), [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
            new.append(" | ".join([first, *rest]))
    return new


def _prose(lines: list[str], block: Block) -> list[int]:
    """Lines with figures in the section of a block, outside of tables and blocks."""
    begin = next((n for n in range(block.begin, -1, -1) if lines[n].startswith("#")), 0)
    end = next((n for n in range(block.end, len(lines)) if lines[n].startswith("#")), len(lines))
    figure = re.compile(r"\d+(\.\d+)? ?(%|ms|s\b|us|times|packets)")
    plain = range(begin, end)
    return [n for n in plain if figure.search(lines[n]) and not lines[n].startswith(("|", "    ", "<!--", "$"))]


if __name__ == "__main__":
    sys.exit(main())
