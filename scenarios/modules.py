"""Modules of a user's own: where "module:Class" leads, and what such a module imports from beside it.

A module's imports are read from its text, without running it, so one whose name is only made up at run time
(`importlib.import_module(f"...")`) is not seen, nor is a file that a module reads. What is installed counts as one
file: its imports belong to the installation.
"""

from __future__ import annotations

import ast
import importlib.util
import site
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

OWN = "gradwire"
"""Never a module from beside, wherever it lies."""


def module_file(name: str, folder: Path | None) -> Path:
    """The file that a module has in `folder` (by default the working directory), whether it is there or not."""
    return (folder or Path.cwd()).joinpath(*name.split(".")).with_suffix(".py")


def user_module(name: str, folder: Path | None) -> Path:
    """The file of a user's module: in `folder` (by default the working directory), else where Python finds it."""
    file = module_file(name, folder)
    if not file.is_file():
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            return Path(spec.origin)
    return file


def root_of(name: str, file: Path) -> Path:
    """The folder that Python counts a module's name from."""
    return file.parents[name.count(".") + (file.name == "__init__.py")]


@cache
def is_installed(root: Path) -> bool:
    """Whether modules in that folder are an installation's, and not somebody's own."""
    paths = sysconfig.get_paths()
    known = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return root.resolve() in {Path(each).resolve() for each in (*known, site.getusersitepackages())}


def imported(file: Path, root: Path) -> list[Path]:
    """The files below `root` that a module imports, directly or by way of others; in order, itself not among them."""
    if is_installed(root):
        return []
    found, waiting = {file}, [file]
    while waiting:
        for other in _imports(waiting.pop(), root):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return sorted(found - {file})


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """What one file imports from below `root`."""
    try:
        package = file.parent.relative_to(root).parts
        names = _names(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: not below the root, or no text
        return
    for level, name in names:
        above = package[: len(package) - level + 1] if level else ()
        parts = (*above, *filter(None, name.split(".")))
        if not parts or parts[0] == OWN:
            continue
        for depth in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:depth])
            yield from (each for each in (place / "__init__.py", place.with_name(f"{place.name}.py")) if each.is_file())


@lru_cache(maxsize=256)
def _names(text: str) -> list[tuple[int, str]]:
    """What a module's text imports: how many dots before it, and the dotted name; of `from a import b` also a.b, which
    may be a module. Nothing of a text that is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(node.level, base), *((node.level, f"{base}.{each.name}") for each in node.names)]
    return found
