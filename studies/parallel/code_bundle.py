"""Copies the user-defined files of scenarios into a folder for other machines, and maps paths into it and back.

Traces, files of topologies and traffic, and modules with the files they import from beside them are copied into a
folder that maps them to their paths on this machine. On another machine a scenario's paths are mapped into the folder,
and messages are mapped back: a Result names the paths of the machine where the sweep was started.
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

from gradwire.result_store.provenance import scenario_text, user_modules
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ScenarioNote
from gradwire.scenarios.loading.modules import import_root, imported_files, is_installed, user_module
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_size

MANIFEST = "gradwire-shipped.json"
MAX_BYTES = 400 << 20
"""Ray takes 512 MiB in one folder, so larger items are left out beyond this limit, with a note."""


@dataclass(frozen=True)
class CodeBundle:
    """A folder with a bundle.

    root : the folder. `places` : relative paths in it, by their paths on the machine that made it.
    """

    root: Path
    places: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> CodeBundle | None:
        """Return the bundle in a folder; None if it has none."""
        try:
            return cls(root, json.loads((root / MANIFEST).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def scenario(self, given: Scenario) -> Scenario:
        """Return a scenario with its paths mapped into the bundle."""
        modules = given.folder or Path.cwd()
        return given.with_paths(self._local_path, self._local_path, Path(self._local_path(f"{modules}/")))

    def result(self, result: Result, given: Scenario) -> Result:
        """Return the Result of a mapped scenario, with the paths of the original one."""
        return dataclasses.replace(result, scenario=scenario_text(given))

    def text(self, words: str) -> str:
        """Return a message with the paths of the machine that made the bundle."""
        for path, relative in sorted(self.places.items(), key=lambda item: -len(item[1])):
            words = words.replace(str(self.root / relative), path.rstrip("/"))
        return words

    def _local_path(self, path: str) -> str:
        return str(self.root / self.places[path]) if path in self.places else path


def write_bundle(scenarios: Iterable[Scenario], root: Path) -> CodeBundle | None:
    """Copy the files that scenarios name into a new folder; return None, and make no folder, if they name none. Missing
    files are left out: running the scenario reports them. So is what exceeds `MAX_BYTES`, with a `ScenarioNote`."""
    files_by_path: dict[str, dict[Path, str]] = {}  # by path in a scenario: files and their names in the bundle
    for scenario in scenarios:
        for path, files in _user_files(scenario):
            files_by_path.setdefault(path, {}).update(files)
    selected = _within_limit({path: files for path, files in files_by_path.items() if files})
    if not selected:
        return None
    path_map = {}
    for number, path in enumerate(selected):
        path_map[path] = f"{number}" if path.endswith("/") or Path(path).is_dir() else f"{number}/{Path(path).name}"
        for file, target_name in files_by_path[path].items():
            target = root / str(number) / target_name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    (root / MANIFEST).write_text(json.dumps(path_map), encoding="utf-8")
    return CodeBundle(root, path_map)


def _user_files(scenario: Scenario) -> Iterator[tuple[str, dict[Path, str]]]:
    """Yield the paths that a scenario names, and their files with their names in the bundle. A folder of modules has a
    slash at its end."""
    for job in scenario.job:
        if Path(job.trace).is_absolute():
            yield job.trace, {file: file.name for file in _files(Path(job.trace))}
    for path in (scenario.topology.path, *(traffic.path for traffic in scenario.traffic)):
        if path and Path(path).is_file():
            yield path, {Path(path): Path(path).name}
    modules = scenario.folder or Path.cwd()
    for _, name in user_modules(scenario):
        file = user_module(name, modules)
        root = import_root(name, file)
        if file.is_file() and not is_installed(root):
            files = [file, *imported_files(file, root)]
            yield f"{modules}/", {source: str(source.relative_to(root)) for source in files}


def _files(folder: Path) -> list[Path]:
    """Return the files directly in a trace's folder; deeper ones, such as full gradients, are left out."""
    return [file for file in sorted(folder.iterdir()) if file.is_file()] if folder.is_dir() else []


def _within_limit(files_by_path: Mapping[str, Mapping[Path, str]]) -> list[str]:
    """Return the paths that fit the limit, smallest first."""
    sizes = {path: sum(_size(file) for file in files) for path, files in files_by_path.items()}
    bytes_left, selected = MAX_BYTES, []
    for path in sorted(sizes, key=lambda path: (sizes[path], path)):
        bytes_left -= sizes[path]
        if bytes_left >= 0:
            selected.append(path)
            continue
        text = (
            f"{path} ({format_size(sizes[path])}) is not taken to the cluster, where {format_size(MAX_BYTES)} are the "
            "most: it has to be at the same place on every node"
        )
        warnings.warn(text, ScenarioNote, stacklevel=4)
    return selected


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
