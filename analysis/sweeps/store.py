"""What is kept of every point: one small file by its key, complete or not there.

    points/<key>.json       done: figures and distributions of every job; or failed: why
    points/<key>.running    which process is at it, or was when it was killed: then it counts as interrupted
    results/<key>/          its Result, where the sweep keeps them

A record that cannot be read, or is of another format, is none: the point is run again. So nothing that a kill leaves
behind has to be repaired.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from gradwire.analysis.sweeps.measures import Distribution, Seen, check_figures, plain_number
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.output import cannot_write, new_folder
from gradwire.scenarios.result import Result

FORMAT = 1
State = Literal["done", "failed", "running", "interrupted", "waiting"]
STATES: tuple[State, ...] = ("done", "failed", "running", "interrupted", "waiting")
"""What there is of a point: its figures; why there are none; that another process is at it, or that somebody was;
nothing yet."""


@dataclass(frozen=True)
class Record:
    """What became of a point.

    Attributes
    ----------
    jobs : what was seen, by job and traffic; empty if it has failed.
    why : of a failure, in one line; `detail`: more lines, for whoever looks for the reason.
    ended_by : what ended the run, as in a Result's summary.
    wall_s : seconds that it took, `simulated_s` those inside of the simulator, set-up among them; both without
    compiling.
    digest : of what came out (`gradwire.scenarios.content`); empty if it is not known.
    """

    state: Literal["done", "failed"]
    jobs: Mapping[str, Seen] = field(default_factory=dict)
    why: str = ""
    detail: str = ""
    ended_by: str = ""
    wall_s: float = 0.0
    simulated_s: float = 0.0
    digest: str = ""

    def figure(self, job: str, measure: str) -> float | None:
        """One figure; that of the first job for ""."""
        seen = self.of(job)
        return None if seen is None else seen.figures.get(measure)

    def of(self, job: str) -> Seen | None:
        """What was seen of a job, or of the first one for ""."""
        return self.jobs.get(job) if job else next(iter(self.jobs.values()), None)

    def as_text(self) -> str:
        """As a file has it."""
        jobs = {
            job: {"figures": seen.figures, "distributions": {k: v._asdict() for k, v in seen.distributions.items()}}
            for job, seen in self.jobs.items()
        }
        data = {"format": FORMAT, **vars(self), "jobs": jobs}
        return json.dumps({**data, "checksum": _checksum(data)}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Record:
        """From what a file has. Raises ValueError, KeyError, TypeError or AttributeError for what is no record."""
        data: dict[str, Any] = parse_json(text)
        checksum = data.pop("checksum", None)  # absent in files of older versions
        if checksum is not None and checksum != _checksum(data):
            raise ValueError("altered")
        if data.pop("format") != FORMAT or data["state"] not in ("done", "failed"):
            raise ValueError("of another format")
        jobs = {
            job: Seen(
                check_figures(each["figures"]),
                {name: Distribution(**parts).checked() for name, parts in each["distributions"].items()},
            )
            for job, each in data.pop("jobs").items()
        }
        if (data["state"] == "done") != bool(jobs):
            raise ValueError("of a run without jobs and traffic")
        record = cls(jobs=jobs, **data)
        texts = (record.why, record.detail, record.ended_by, record.digest)
        seconds = [plain_number(record.wall_s), plain_number(record.simulated_s)]
        if min(seconds) < 0 or not all(isinstance(each, str) for each in texts):
            raise ValueError("a value that no run has")
        return record


def _checksum(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a file says besides its checksum."""
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """What stops somebody from writing into a folder becomes one `ResultError`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error, place) from None


def packed(result: Result) -> bytes:
    """A Result as bytes: its folder as an archive."""
    target = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        place = result.write(Path(folder) / "result")
        with tarfile.open(fileobj=target, mode="w:gz") as archive:
            for file in sorted(place.iterdir()):
                archive.add(file, file.name)
    return target.getvalue()


class Store:
    """The records below a sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.points, self.results = folder / "points", folder / "results"

    def make(self) -> None:
        """Make its folders. Raises `ResultError` if they cannot be."""
        with writing(self.points):
            self.points.mkdir(parents=True, exist_ok=True)

    def read(self, key: str) -> Record | None:
        """The record of a point; None if there is none that can be used."""
        try:
            return Record.of_text((self.points / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def read_all(self, keys: Iterable[str]) -> dict[str, Record]:
        """The records of those points that have one."""
        found = {key: self.read(key) for key in dict.fromkeys(keys)}
        return {key: record for key, record in found.items() if record is not None}

    def begin(self, key: str) -> None:
        """A process begins with a point. Raises `ResultError` if that cannot be written, as `write` does."""
        with writing(self.points):
            (self.points / f"{key}.running").write_text(_myself(), encoding="utf-8")

    def write(self, key: str, record: Record) -> None:
        """Keep a record; it is there at once, or not at all."""
        partial = self.points / f".{key}.{os.getpid()}.partial"
        try:
            with writing(self.points):
                partial.write_text(record.as_text(), encoding="utf-8")
                partial.replace(self.points / f"{key}.json")
        finally:
            partial.unlink(missing_ok=True)
        self.left(key)

    def left(self, key: str) -> None:
        """Nobody is at a point any more, and nothing has become of it that should be remembered."""
        with suppress(FileNotFoundError):
            (self.points / f"{key}.running").unlink()

    def was_begun(self, key: str) -> bool:
        """Whether somebody is at a point, or was when the last sweep ended."""
        return (self.points / f"{key}.running").exists()

    def is_running(self, key: str) -> bool:
        """Whether another process of this machine is at a point now."""
        try:
            told = (self.points / f"{key}.running").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False
        host, _, process = told.partition(" ")
        number = process.partition(" ")[0]
        return host == os.uname().nodename and told != _myself() and number.isdecimal() and told == _named(int(number))

    def has_result(self, key: str) -> bool:
        """Whether the Result of a point is kept."""
        return (self.results / key / "result.json").is_file()

    def keep_result(self, key: str, result: Result) -> None:
        """Keep the Result of a point, in the place of an earlier one."""
        shutil.rmtree(self.results / key, ignore_errors=True)
        result.write(self.results / key)

    def unpack_result(self, key: str, packed: bytes) -> None:
        """The same of one that comes from another machine."""
        shutil.rmtree(self.results / key, ignore_errors=True)
        with new_folder(self.results / key) as folder, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")

    def states(self, keys: Iterable[str], records: Mapping[str, Record]) -> dict[State, int]:
        """How many points are in which state."""
        found = dict.fromkeys(STATES, 0)
        for key in keys:
            found[self._state(key, records.get(key))] += 1
        return found

    def _state(self, key: str, record: Record | None) -> State:
        if record is not None:
            return record.state
        if not self.was_begun(key):
            return "waiting"
        return "running" if self.is_running(key) else "interrupted"

    def tidy(self) -> None:
        """Remove what killed processes have left half written. Only whoever has the folder's lock may."""
        for partial in self.points.glob(".*.partial"):
            partial.unlink(missing_ok=True)
        for marker in self.points.glob("*.running"):
            if self.read(marker.stem) is not None:  # killed between the record and this
                self.left(marker.stem)


def _myself() -> str:
    return _named(os.getpid())


def _named(process: int) -> str:
    """What no other process is called: machine, number and when it was started [proc(5), stat: field 22]; "" for none
    that runs."""
    try:
        after = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        after = []
    if not after:
        return f"{os.uname().nodename} {process}" if process == os.getpid() else ""
    return f"{os.uname().nodename} {process} {after[19]}"
