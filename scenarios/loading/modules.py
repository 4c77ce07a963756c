"""Finds the file behind a user-defined class's name `module:Class`, and the files beside it that it imports.

A module's imports are read from its text, without running it, so a name computed at run time
(`importlib.import_module(f"...")`) is missed, and so is a file that a module reads. An installed package counts as one
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

PACKAGE = "gradwire"
"""Package that is never taken from beside a user's module."""


def module_file(name: str, folder: Path | None) -> Path:
    """Return the path that a module would have in `folder` (default: the working directory)."""
    return (folder or Path.cwd()).joinpath(*name.split(".")).with_suffix(".py")


def user_module(name: str, folder: Path | None) -> Path:
    """Return the file of a user's module: in `folder` (default: the working directory), else on Python's path."""
    file = module_file(name, folder)
    if not file.is_file():
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            return Path(spec.origin)
    return file


def import_root(name: str, file: Path) -> Path:
    """Return the folder that a module's dotted name starts from."""
    return file.parents[name.count(".") + (file.name == "__init__.py")]


@cache
def is_installed(root: Path) -> bool:
    """Return True if the folder belongs to a Python installation."""
    paths = sysconfig.get_paths()
    known = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return root.resolve() in {Path(each).resolve() for each in (*known, site.getusersitepackages())}


def imported_files(file: Path, root: Path) -> list[Path]:
    """Return the files below `root` that a module imports, directly or indirectly; sorted, without the module."""
    if is_installed(root):
        return []
    seen, pending = {file}, [file]
    while pending:
        for other in _imports(pending.pop(), root):
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return sorted(seen - {file})


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that one file may import."""
    try:
        package = file.parent.relative_to(root).parts
        names = _names(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: not below the root, or not text
        return
    for level, name in names:
        above = package[: len(package) - level + 1] if level else ()
        parts = (*above, *filter(None, name.split(".")))
        if not parts or parts[0] == PACKAGE:
            continue
        for depth in range(1, len(parts) + 1):
            path = root.joinpath(*parts[:depth])
            yield from (each for each in (path / "__init__.py", path.with_name(f"{path.name}.py")) if each.is_file())


@lru_cache(maxsize=256)
def _names(text: str) -> list[tuple[int, str]]:
    """Return the imports in a module's text as (number of leading dots, dotted name); nothing if it is not Python. For
    `from a import b` also a.b, which may be a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names += [(node.level, base), *((node.level, f"{base}.{alias.name}") for alias in node.names)]
    return names
