"""Requires the user's consent before code that lies in a Result is imported.

A scenario names classes as "module:Class", and running it runs that module. Users know the files beside their own
scenarios. A Result is data, passed from hand to hand, and reading it runs nothing; so a module in a Result is imported
only with consent: `--trust`, a "yes" on a terminal, or the environment variable `GRADWIRE_TRUST`, which names folders
and is inherited by child processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.modules import import_root, imported_files

VARIABLE = "GRADWIRE_TRUST"
EVERYTHING = "*"
"""Value of the variable that means every folder."""
RESULT_MARKERS = ("result.json", "comparison.json", "fidelity.json", "training.json", "claims.json")
"""Files that mark a folder as gradwire output."""
Question = Callable[[str], bool]

_questions: list[Question] = []


class TrustError(ScenarioError):
    """Code in a Result that the user has not trusted."""


@contextmanager
def trust_scope(everything: bool, question: Question | None = None) -> Iterator[None]:
    """Trust every Result inside the context, or ask `question` (with its text) for each one that holds code. The trust
    ends with the context."""
    before = os.environ.get(VARIABLE)
    if everything:
        os.environ[VARIABLE] = EVERYTHING
    if question is not None:
        _questions.append(question)
    try:
        yield
    finally:
        if question is not None:
            _questions.remove(question)
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def trust(folder: str | Path) -> None:
    """Allow this process and its children to import modules in `folder`."""
    os.environ[VARIABLE] = os.pathsep.join([*_trusted(), str(Path(folder).resolve())])


def trust_environment() -> Mapping[str, str]:
    """Return the variable, if set, for a process that does not inherit it."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def require_trust(name: str, file: Path) -> None:
    """Raise TrustError unless the file of the module `name` may be imported."""
    folder = enclosing_result(file)
    if folder is None or _is_trusted(folder):
        return
    root = import_root(name, file)
    files = [str(each.relative_to(root)) for each in (file, *imported_files(file, root))]
    what = f"holds code that would be imported: {', '.join(files)}"
    if _questions and _questions[-1](f"{folder} {what}. Run it with your permissions?"):
        trust(folder)
        return
    expected = f"--trust (in Python: {VARIABLE}={folder}), if you trust its author; see SECURITY.md"
    raise TrustError(what, str(folder), expected)


def enclosing_result(path: Path) -> Path | None:
    """Return the outermost folder around a file that holds gradwire output, or None. Links count at both ends."""
    for start in dict.fromkeys((path.absolute(), path.resolve())):
        for folder in reversed(start.parents):
            if any((folder / mark).is_file() for mark in RESULT_MARKERS):
                return folder
    return None


def refuse_outside(path: Path, modules: object) -> None:
    """Raise ScenarioError if a Result's scenario names a relative folder of modules outside of the Result. gradwire
    itself writes such a folder as an absolute path."""
    result = enclosing_result(path)
    if result is None or not isinstance(modules, str) or Path(modules).is_absolute():
        return
    if not (path.parent / modules).resolve().is_relative_to(result.resolve()):
        raise ScenarioError(f"got {modules!r}, outside of the Result", "modules", "an absolute path, as it was written")


def _trusted() -> Sequence[str]:
    return [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]


def _is_trusted(folder: Path) -> bool:
    resolved = folder.resolve()
    return any(each == EVERYTHING or resolved.is_relative_to(Path(each).resolve()) for each in _trusted())
