"""Trust in code that lies in a Result: asked for before it is imported.

A scenario names classes as "module:Class", and whoever runs it runs that module. A user knows what lies beside a
scenario of their own. A Result is data, passed from hand to hand, and reading it runs nothing; so a module that lies in
one is imported only if the user says so: `--trust`, a "yes" on a terminal, or the environment variable
`GRADWIRE_TRUST`, which names folders and is inherited by the processes that a command starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.modules import imported, root_of

VARIABLE = "GRADWIRE_TRUST"
EVERYTHING = "*"
"""Value of the variable that stands for every folder."""
MARKS = ("result.json", "comparison.json", "fidelity.json", "training.json", "claims.json")
"""Files by which a folder is recognised as one that gradwire has written results to."""
Question = Callable[[str], bool]

_questions: list[Question] = []


class TrustError(ScenarioError):
    """Code that lies in a Result, and that the user has not trusted."""


@contextmanager
def trusting(everything: bool, question: Question | None = None) -> Iterator[None]:
    """Trust every Result for a while, or ask `question` (with the words to ask) for each that holds code. What was
    trusted is forgotten afterwards."""
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
    """Let modules that lie in `folder` be imported by this process and those that it starts."""
    os.environ[VARIABLE] = os.pathsep.join([*_trusted(), str(Path(folder).resolve())])


def environment() -> Mapping[str, str]:
    """Return the variable for a process that inherits none, if it is set."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def require_trust(name: str, file: Path) -> None:
    """Raise TrustError unless the file of a module may be imported. `name` is the module's."""
    folder = enclosing_result(file)
    if folder is None or _is_trusted(folder):
        return
    root = root_of(name, file)
    files = [str(each.relative_to(root)) for each in (file, *imported(file, root))]
    what = f"holds code that would be imported: {', '.join(files)}"
    if _questions and _questions[-1](f"{folder} {what}. Run it as you?"):
        trust(folder)
        return
    expected = f"--trust (in Python: {VARIABLE}={folder}), if you trust whoever wrote it; SECURITY.md says why"
    raise TrustError(what, str(folder), expected)


def enclosing_result(path: Path) -> Path | None:
    """Return the outermost folder around a file that gradwire has written results to; None if there is none. A link
    counts as where it lies and as what it leads to."""
    for start in dict.fromkeys((path.absolute(), path.resolve())):
        for folder in reversed(start.parents):
            if any((folder / mark).is_file() for mark in MARKS):
                return folder
    return None


def refuse_outside(path: Path, modules: object) -> None:
    """Raise ScenarioError if the scenario of a Result names a folder of modules relative to itself that lies outside of
    the Result. gradwire writes such a folder as an absolute path."""
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
