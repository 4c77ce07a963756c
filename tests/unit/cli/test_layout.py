"""Folders of the product hold at most 15 modules, pages and docstrings avoid the glossary's banned words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    "scenarios", "result_store", "jit", "protocols", "traces", "topology", "workload", "sim", "emu", "training", "analysis", "studies",
    "testing", "benchmarks", "gradwire/cli",
)  # fmt: skip
MOST_MODULES = 15
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def modules_by_folder(packages: tuple[str, ...]) -> Counter[str]:
    """Return the number of modules in every folder, `__init__` not counted."""
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    return Counter(str(path.parent.relative_to(ROOT)) for path in paths)


def test_folders_hold_at_most_15_modules() -> None:
    counts = modules_by_folder(PACKAGES)
    assert len(counts) > 60
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_every_folder_with_modules_is_a_package() -> None:
    assert [folder for folder in modules_by_folder(PACKAGES) if not (ROOT / folder / "__init__.py").exists()] == []


def terms(heading: str) -> list[str]:
    """Return the first column of the glossary's table below a heading."""
    section = GLOSSARY.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[1:]


def test_glossary_is_sorted_and_names_each_term_once() -> None:
    words = [term.lower() for term in terms("Terms")]
    assert words == sorted(set(words)) and len(words) >= 39
    assert len(terms("Words to avoid")) >= 9


def banned_words() -> re.Pattern[str]:
    """Return a pattern of the words that the glossary bans. A word in parentheses is one that may follow, not a banned one."""
    phrases = [word for row in terms("Words to avoid") if "(" not in row for word in row.split(", ")]
    assert {"told", "heard", "sent again", "nobody"} < set(phrases)
    return re.compile(r"\b(" + "|".join(re.escape(phrase) for phrase in phrases) + r")\b", re.IGNORECASE)


def without_code(text: str) -> str:
    """Return the text without what stands in backquotes, such as names of functions."""
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize(
    "page", sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name
)
def test_pages_avoid_banned_words(page: Path) -> None:
    if page.name == "glossary.md":
        return
    in_code, found = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        in_code ^= line.startswith("```")
        if not in_code and not line.startswith("    ") and banned_words().search(without_code(line)):
            found.append(line)
    assert found == []


def test_docstrings_avoid_banned_words() -> None:
    pattern, found, count = banned_words(), [], 0
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = ast.get_docstring(node) or ""
                    count += bool(text)
                    if match := pattern.search(without_code(text)):
                        found.append(f"{path.relative_to(ROOT)}: {match[0]}: {text[:60]}")
    assert count > 5000 and found == []
