"""Shipping: what scenarios name of a user's own, as one folder for machines that do not have it.

Traces, files of topologies and traffic, and modules with what they import from beside them are laid out in a folder
that says which path of this machine each of them stands for. Where the folder is then, a scenario is turned to what is
in it, and what is told about it is turned back: a Result names the paths of the machine where the sweep was begun.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import ScenarioNote
from gradwire.scenarios.modules import imported, is_installed, root_of, user_module
from gradwire.scenarios.record import own_modules, scenario_text
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

LISTED = "gradwire-shipped.json"
MOST_BYTES = 400 << 20
"""Ray takes 512 MiB along in one folder, so we leave out what is more, the largest first, and say so."""


@dataclass(frozen=True)
class Shipped:
    """A folder in which such things lie.

    Attributes
    ----------
    root : the folder. `places` : by their paths on the machine that has laid them out, where in it they are.
    """

    root: Path
    places: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> Shipped | None:
        """What is in a folder; None if it is none of these."""
        try:
            return cls(root, json.loads((root / LISTED).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def scenario(self, given: Scenario) -> Scenario:
        """A scenario, turned to what is here."""
        modules = given.folder or Path.cwd()
        return given.moved(self._here, self._here, Path(self._here(f"{modules}/")))

    def result(self, found: Result, given: Scenario) -> Result:
        """What has come of such a scenario, with the paths of the one that was given."""
        return dataclasses.replace(found, scenario=scenario_text(given))

    def text(self, words: str) -> str:
        """Words with the paths of the machine that has laid them out."""
        for path, place in sorted(self.places.items(), key=lambda each: -len(each[1])):
            words = words.replace(str(self.root / place), path.rstrip("/"))
        return words

    def _here(self, path: str) -> str:
        return str(self.root / self.places[path]) if path in self.places else path


def lay_out(scenarios: Iterable[Scenario], root: Path) -> Shipped | None:
    """Put what scenarios name into a new folder; None, and no folder, if they name nothing of a user's own.

    What is not there is left out: whoever runs the scenario says what is missing. So is what is more than `MOST_BYTES`,
    with a `ScenarioNote`.
    """
    things: dict[str, dict[Path, str]] = {}  # files, by the path that they stand for, with their places
    for scenario in scenarios:
        for path, files in _named(scenario):
            things.setdefault(path, {}).update(files)
    taken = _fitting({path: files for path, files in things.items() if files})
    if not taken:
        return None
    places = {}
    for number, path in enumerate(taken):
        places[path] = f"{number}" if path.endswith("/") or Path(path).is_dir() else f"{number}/{Path(path).name}"
        for file, place in things[path].items():
            target = root / str(number) / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    (root / LISTED).write_text(json.dumps(places), encoding="utf-8")
    return Shipped(root, places)


def _named(scenario: Scenario) -> Iterator[tuple[str, dict[Path, str]]]:
    """What a scenario names: paths as they stand in it, a folder of modules with a slash at its end, and the files that
    belong to each, with their places below it."""
    for job in scenario.job:
        if Path(job.trace).is_absolute():
            yield job.trace, {file: file.name for file in _files(Path(job.trace))}
    for path in (scenario.topology.path, *(each.path for each in scenario.traffic)):
        if path and Path(path).is_file():
            yield path, {Path(path): Path(path).name}
    modules = scenario.folder or Path.cwd()
    for _, name in own_modules(scenario):
        file = user_module(name, modules)
        root = root_of(name, file)
        if file.is_file() and not is_installed(root):
            files = [file, *imported(file, root)]
            yield f"{modules}/", {each: str(each.relative_to(root)) for each in files}


def _files(folder: Path) -> list[Path]:
    """The files of a trace: those of its folder, without what lies deeper, such as gradients themselves."""
    return [file for file in sorted(folder.iterdir()) if file.is_file()] if folder.is_dir() else []


def _fitting(things: Mapping[str, Mapping[Path, str]]) -> list[str]:
    """Those that can be taken along, smallest first."""
    sizes = {path: sum(_size(file) for file in files) for path, files in things.items()}
    room, taken = MOST_BYTES, []
    for path in sorted(sizes, key=lambda each: (sizes[each], each)):
        room -= sizes[path]
        if room >= 0:
            taken.append(path)
            continue
        text = (
            f"{path} ({format_size(sizes[path])}) is not taken to the cluster, where {format_size(MOST_BYTES)} are the "
            "most: it has to be at the same place on every node"
        )
        warnings.warn(text, ScenarioNote, stacklevel=4)
    return taken


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
