"""Folders of the product hold at most 15 modules, pages avoid the glossary's banned words, lines fit."""

from __future__ import annotations

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


def test_a_folder_holds_at_most_15_modules() -> None:
    counts = modules_by_folder(PACKAGES)
    assert len(counts) > 60
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_every_folder_with_modules_is_a_package() -> None:
    assert [folder for folder in modules_by_folder(PACKAGES) if not (ROOT / folder / "__init__.py").exists()] == []


def terms(heading: str) -> list[str]:
    """Return the first column of the glossary's table below a heading."""
    section = GLOSSARY.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[1:]


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    words = [term.lower() for term in terms("Terms")]
    assert words == sorted(set(words)) and len(words) >= 39
    assert len(terms("Words to avoid")) >= 9


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md", "docs/demo.md", "docs/choices.md"]
)
def test_pages_avoid_banned_words(page: str) -> None:
    """Pages join this list when they are rewritten."""
    banned = (
        r"\b(told|heard|gone on with|goes on with|go on with|of one's own|of the user's own|is said|sent again|so many|"
        r"strangers?|nobody|somebody|everybody|trainings)\b"
    )
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert [
        line for line in lines if re.search(banned, line, re.IGNORECASE) and not line.startswith(("    ", "|"))
    ] == []
