"""Modules of a user's own: where "module:Class" leads, and what such a module imports from beside it.

A module's imports are read from its text, without running it, so one whose name is only made up at run time
(`importlib.import_module(f"...")`) is not seen, nor is a file that a module reads. What is installed counts as one
file: its imports belong to the installation.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gradwire.scenarios.asked import stopped_at
from gradwire.scenarios.errors import ScenarioError

T = TypeVar("T")

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


def user_class(name: str, folder: Path | None, where: str) -> Any:
    """What is behind "module:Class"; `where` is the path of what names it.

    Raises
    ------
    ScenarioError
        There is no such module or class, or it is stopped by an error; says where and why.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = _loaded(module_name, folder)
        return getattr(module, attribute)
    except AttributeError as error:
        what = f"{name!r} cannot be loaded: there is no {attribute} in {getattr(module, '__file__', module_name)}"
        raise ScenarioError(what, where, "an importable module:Class") from error
    except ImportError as error:
        raise ScenarioError(f"{name!r} cannot be loaded: {error}", where, "an importable module:Class") from error


def _loaded(name: str, folder: Path | None) -> types.ModuleType:
    """A module of the user's own: the file of that name in `folder` (by default the working directory), else whatever
    Python finds. A file is known by its path and content, so two scenarios may name two files alike.

    Raises
    ------
    ImportError
        It cannot be imported, with the line that stopped it.
    """
    folder = folder or Path.cwd()
    file = module_file(name, folder)
    if not file.is_file():
        return _stopped_by(lambda: importlib.import_module(name), name)
    content = _stopped_by(file.read_bytes, str(file))
    digest = hashlib.sha256(str(file).encode() + b"\0" + content).hexdigest()[:12]
    unique = f"gradwire_user_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # for what it imports from beside it
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    loader = spec.loader
    try:
        _stopped_by(lambda: loader.exec_module(module), str(file))
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _stopped_by(load: Callable[[], T], what: str) -> T:
    """Load a module; whatever stops it - a mistake, a missing import, `sys.exit` - becomes one ImportError."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        raise ImportError(str(error) if str(error.name) in what else f"{error} ({what})") from error
    except BaseException as error:
        raise ImportError(stopped_at(error, what)) from error


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
