"""`PointStore` stores the outcome of each sweep point in a small file named by the point's key.

    points/<key>.json       done: figures and distributions of every job; or failed: the reason
    points/<key>.running    process that works on it or, if it was killed, did: then the point counts as interrupted
    results/<key>/          its Result, if the sweep stores them

A record that is unreadable or of another format counts as absent, and the point is run again. So nothing needs repair
after a kill.
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

from gradwire.result_store.folders.output_folder import new_folder, write_error
from gradwire.result_store.result import Result
from gradwire.scenarios.json_data import parse_json
from gradwire.studies.sweep.measures import JobFigures, ValueCounts, check_figures, plain_number

FORMAT = 1
State = Literal["done", "failed", "running", "interrupted", "waiting"]
STATES: tuple[State, ...] = ("done", "failed", "running", "interrupted", "waiting")
"""States of a point: has figures; failed; another process works on it; a process did; nothing yet."""


@dataclass(frozen=True)
class Record:
    """Outcome of a point.

    jobs : figures by job and traffic; empty if it failed.
    why : reason of a failure, in one line; `detail` : further lines.
    ended_by : end of the run, as in a Result's summary.
    wall_s : duration in seconds, `simulated_s` of it within the simulator with set-up; both without compiling.
    digest : of the Result (`gradwire.result_store.digest`); empty if unknown.
    """

    state: Literal["done", "failed"]
    jobs: Mapping[str, JobFigures] = field(default_factory=dict)
    why: str = ""
    detail: str = ""
    ended_by: str = ""
    wall_s: float = 0.0
    simulated_s: float = 0.0
    digest: str = ""

    def figure(self, job: str, measure: str) -> float | None:
        """Return a figure of a job, or of the first job for ""."""
        seen = self.of(job)
        return None if seen is None else seen.figures.get(measure)

    def of(self, job: str) -> JobFigures | None:
        """Return the figures of a job, or of the first one for ""."""
        return self.jobs.get(job) if job else next(iter(self.jobs.values()), None)

    def as_text(self) -> str:
        """Return the content of its file."""
        jobs = {
            job: {"figures": seen.figures, "distributions": {k: v._asdict() for k, v in seen.distributions.items()}}
            for job, seen in self.jobs.items()
        }
        data = {"format": FORMAT, **vars(self), "jobs": jobs}
        return json.dumps({**data, "checksum": _checksum(data)}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Record:
        """Parse the content of a file. Raises ValueError, KeyError, TypeError or AttributeError if it is not a
        record."""
        data: dict[str, Any] = parse_json(text)
        checksum = data.pop("checksum", None)  # absent in files of older versions
        if checksum is not None and checksum != _checksum(data):
            raise ValueError("altered")
        if data.pop("format") != FORMAT or data["state"] not in ("done", "failed"):
            raise ValueError("unsupported format")
        jobs = {
            job: JobFigures(
                check_figures(entry["figures"]),
                {name: ValueCounts(**parts).checked() for name, parts in entry["distributions"].items()},
            )
            for job, entry in data.pop("jobs").items()
        }
        if (data["state"] == "done") != bool(jobs):
            raise ValueError("state and figures disagree")
        record = cls(jobs=jobs, **data)
        texts = (record.why, record.detail, record.ended_by, record.digest)
        seconds = [plain_number(record.wall_s), plain_number(record.simulated_s)]
        if min(seconds) < 0 or not all(isinstance(text, str) for text in texts):
            raise ValueError("a value out of range")
        return record


def _checksum(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content other than its checksum."""
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing into a folder into one `ResultError`."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from None


def packed(result: Result) -> bytes:
    """Return a Result as bytes: its folder as an archive."""
    target = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        path = result.write(Path(folder) / "result")
        with tarfile.open(fileobj=target, mode="w:gz") as archive:
            for file in sorted(path.iterdir()):
                archive.add(file, file.name)
    return target.getvalue()


class PointStore:
    """Records in a sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.points, self.results = folder / "points", folder / "results"

    def make(self) -> None:
        """Make the folders. Raises `ResultError` if that fails."""
        with write_errors(self.points):
            self.points.mkdir(parents=True, exist_ok=True)

    def read(self, key: str) -> Record | None:
        """Return the record of a point; None if there is none or it is unusable."""
        try:
            return Record.of_text((self.points / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def read_all(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records of those points that have one."""
        records = {key: self.read(key) for key in dict.fromkeys(keys)}
        return {key: record for key, record in records.items() if record is not None}

    def begin(self, key: str) -> None:
        """Mark a point as running in this process. Raises `ResultError` if that cannot be written, as `write` does."""
        with write_errors(self.points):
            (self.points / f"{key}.running").write_text(_myself(), encoding="utf-8")

    def write(self, key: str, record: Record) -> None:
        """Store a record atomically."""
        partial = self.points / f".{key}.{os.getpid()}.partial"
        try:
            with write_errors(self.points):
                partial.write_text(record.as_text(), encoding="utf-8")
                partial.replace(self.points / f"{key}.json")
        finally:
            partial.unlink(missing_ok=True)
        self.unmark_running(key)

    def unmark_running(self, key: str) -> None:
        """Remove the mark of a running point."""
        with suppress(FileNotFoundError):
            (self.points / f"{key}.running").unlink()

    def was_begun(self, key: str) -> bool:
        """Return True if a process works on a point, or did when the last sweep ended."""
        return (self.points / f"{key}.running").exists()

    def is_running(self, key: str) -> bool:
        """Return True if another process of this machine works on a point now."""
        try:
            marker = (self.points / f"{key}.running").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return False
        host, _, process = marker.partition(" ")
        number = process.partition(" ")[0]
        return (
            host == os.uname().nodename and marker != _myself() and number.isdecimal() and marker == _named(int(number))
        )

    def has_result(self, key: str) -> bool:
        """Return True if the Result of a point is stored."""
        return (self.results / key / "result.json").is_file()

    def keep_result(self, key: str, result: Result) -> None:
        """Store the Result of a point, replacing an earlier one."""
        shutil.rmtree(self.results / key, ignore_errors=True)
        result.write(self.results / key)

    def unpack_result(self, key: str, packed: bytes) -> None:
        """Store a Result that was packed on another machine."""
        shutil.rmtree(self.results / key, ignore_errors=True)
        with new_folder(self.results / key) as folder, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")

    def states(self, keys: Iterable[str], records: Mapping[str, Record]) -> dict[State, int]:
        """Return the number of points in each state."""
        counts = dict.fromkeys(STATES, 0)
        for key in keys:
            counts[self._state(key, records.get(key))] += 1
        return counts

    def _state(self, key: str, record: Record | None) -> State:
        if record is not None:
            return record.state
        if not self.was_begun(key):
            return "waiting"
        return "running" if self.is_running(key) else "interrupted"

    def remove_partial_files(self) -> None:
        """Remove partial files of killed processes. Requires the folder's lock."""
        for partial in self.points.glob(".*.partial"):
            partial.unlink(missing_ok=True)
        for marker in self.points.glob("*.running"):
            if self.read(marker.stem) is not None:  # killed after writing the record
                self.unmark_running(marker.stem)


def _myself() -> str:
    return _named(os.getpid())


def _named(process: int) -> str:
    """Return a unique name of a process: machine, number and start time [proc(5), stat: field 22]; "" if not
    running."""
    try:
        stat_fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        stat_fields = []
    if not stat_fields:
        return f"{os.uname().nodename} {process}" if process == os.getpid() else ""
    return f"{os.uname().nodename} {process} {stat_fields[19]}"
