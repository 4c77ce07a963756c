"""`write_skeleton` writes a working user-defined component, its test and a scenario, from templates."""

from __future__ import annotations

import importlib.util
import io
import keyword
import os
import re
import shlex
import sys
import tempfile
import tokenize
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from gradwire.result_store.folders.output_folder import write_error
from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.interrupt import defer_interrupt

TEMPLATES = "gradwire.protocols.templates"
CLASSES = {"transport": "FixedWindow", "load_balancer": "TwoRandom", "queue_policy": "MarkThenDrop"}
"""The class of each template, by kind. Its module, test and scenario have the same name in snake case."""
EXAMPLE = "such as my_transport.py"


class Skeleton(NamedTuple):
    """The files of one component."""

    component: Path
    test: Path
    scenario: Path

    def commands(self) -> tuple[str, str]:
        """Return the commands that run the scenario and the test."""
        return f"gradwire run {shlex.quote(str(self.scenario))}", f"pytest {shlex.quote(str(self.test))}"


def write_skeleton(kind: str, file: str | Path, force: bool = False) -> Skeleton:
    """Write a component of a kind to `file`, and its test and a scenario beside it.

    Parameters
    ----------
    kind : a key of `CLASSES`.
    force : replace earlier files, which have the same first line.

    Raises
    ------
    ScenarioError
        The kind is unknown, the name cannot be imported, or the files exist or cannot be written. Nothing is written.
    """
    if kind not in CLASSES:
        raise ScenarioError(f"{kind!r} is not known", "KIND", f"one of {', '.join(CLASSES)}{nearest(kind, CLASSES)}")
    path = Path(file)
    try:
        _check_name(path)
        skeleton = Skeleton(path, path.with_name(f"test_{path.name}"), path.with_suffix(".toml"))
        texts = _texts(kind, path.stem)
        _check_places(skeleton, texts, force)
        # the files appear together, once all are written
        with defer_interrupt(), tempfile.TemporaryDirectory(prefix=".gradwire-", dir=path.parent) as folder:
            for target, text in zip(skeleton, texts, strict=True):
                (Path(folder) / target.name).write_text(text, encoding="utf-8")
            for target in skeleton:
                os.replace(Path(folder) / target.name, target)
    except OSError as error:
        raise write_error(error, path, ScenarioError) from None
    return skeleton


def _check_name(path: Path) -> None:
    """Raise ScenarioError unless a module of this name can be written, imported and named in a scenario."""
    name = path.stem
    if path.suffix != ".py":
        raise ScenarioError("does not end in .py", str(path), f"the name of a Python module, {EXAMPLE}")
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or not name.strip("_"):
        what = f"{name!r} is not a Python identifier that can be imported"
        raise ScenarioError(what, str(path), f"letters, digits and underscores, {EXAMPLE}")
    if name == "conftest" or name.startswith("test_") or name.endswith("_test"):
        raise ScenarioError(f"pytest takes {path.name} for tests", str(path), f"another name, {EXAMPLE}")
    module = _other_module(name, path.parent)
    if module:
        raise ScenarioError(f"{name!r} is the name of {module}", str(path), f"another name, {EXAMPLE}")


def _other_module(name: str, folder: Path) -> str:
    """Return a description of a module that Python would import instead of a file in `folder`, or ""."""
    if name in sys.stdlib_module_names:
        return "a module of the standard library"
    package = folder / name / "__init__.py"
    if package.exists():
        return f"a package, {package}"
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module without a specification
        return "an installed module"
    if spec is None or spec.origin is None:  # absent, or a folder without modules
        return ""
    own = Path(spec.origin).resolve().parent in (folder.resolve(), Path.cwd())
    return "" if own else f"an installed module, {spec.origin}"


def _check_places(skeleton: Skeleton, texts: list[str], force: bool) -> None:
    """Raise ScenarioError if the folder is missing or a file is in the way."""
    folder = skeleton.component.parent
    if not folder.is_dir():
        what = "is not a folder" if os.path.lexists(folder) else "there is no such folder"
        raise ScenarioError(what, str(folder), "a folder that exists")
    folders = [str(path) for path in skeleton if path.is_dir()]
    if folders:
        raise ScenarioError("is a folder", folders[0], f"another name, {EXAMPLE}")
    taken = [str(path) for path in skeleton if os.path.lexists(path)]
    if taken and not force:
        what = "exists already" if len(taken) == 1 else "exist already"
        raise ScenarioError(what, ", ".join(taken), "another name, or --force to replace the files")
    for path, text in zip(skeleton, texts, strict=True):
        first = text.splitlines(keepends=True)[0].encode()
        if os.path.lexists(path) and (path.is_symlink() or not path.read_bytes().startswith(first)):
            raise ScenarioError("cannot be replaced (--force)", str(path), "an earlier output of the same kind")


def _texts(kind: str, name: str) -> list[str]:
    """Return the component, its test and its scenario, with the names of the copy."""
    template = files(TEMPLATES)
    texts = [(template / file).read_text("utf-8") for file in (f"{kind}.py", f"{kind}_test.txt", f"{kind}.toml")]
    old_class = CLASSES[kind]
    old_name = re.sub(r"\B([A-Z])", r"_\1", old_class).lower()
    names = {
        old_class: _class_name(name, [text.replace(old_class, "") for text in texts[:2]]),
        old_name: name,
        old_name.replace("_", "-"): name.replace("_", "-").strip("-"),
    }
    pattern = re.compile("|".join(map(re.escape, names)))
    return [pattern.sub(lambda match: names[match[0]], text) for text in texts]


def _class_name(name: str, modules: list[str]) -> str:
    """Return the module's name in camel case. "My" precedes it if the modules use the name for something else."""
    camel = "".join(part[0].upper() + part[1:] for part in name.split("_") if part)
    tokens = {token.string for text in modules for token in tokenize.generate_tokens(io.StringIO(text).readline)}
    is_usable = camel.isidentifier() and not keyword.iskeyword(camel) and camel not in tokens
    return camel if is_usable else f"My{camel}"
