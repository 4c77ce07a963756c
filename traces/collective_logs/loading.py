"""`load_logs` reads the files of one job, whatever wrote them, into a `CollectiveLog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.validation.argument_checks import require_path
from gradwire.traces.collective_logs import flight_recorder, inspector, profiles
from gradwire.traces.collective_logs.profiles import RankActivity
from gradwire.traces.collective_logs.records import CollectiveLog, LogBuilder
from gradwire.traces.formats.source import head

FORMATS = (flight_recorder, inspector, profiles)
"""Modules with KIND, TITLE and `recognise`, in the order in which they are tried."""
EXPECTED = ", ".join(module.TITLE for module in FORMATS)
HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class LoadedLogs:
    """The log of a job, and for profiles what each rank's accelerator did."""

    log: CollectiveLog
    activities: list[RankActivity] = field(default_factory=list)


def load_logs(paths: Sequence[str | Path], progress: Callable[[float, str], None] | None = None) -> LoadedLogs:
    """Read files, and all recognised files of folders, as the log of one job.

    Files of a folder that no format recognises are counted. TraceError for a given file that none recognises, a folder
    without any, files of several formats, and damaged files.
    """
    if not paths:
        raise TraceError("no files", "diagnose", EXPECTED)
    files: dict[Path, str] = {}
    unknown = 0
    for path in (require_path(path, "load_logs(paths)", "a file or folder", TraceError) for path in paths):
        members = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        kinds = [(member, _kind_of(member, path.is_dir())) for member in members]
        known = {member: kind for member, kind in kinds if kind}
        if not known:
            raise TraceError("holds no log of collectives" if path.is_dir() else "unknown format", str(path), EXPECTED)
        unknown += len(members) - len(known)
        files |= known
    formats = sorted(set(files.values()))
    if len(formats) > 1:
        raise TraceError(f"files of several formats: {', '.join(formats)}", str(paths[0]), "files of one format")
    builder = LogBuilder(formats[0])
    builder.skipped["files of unknown formats"] += unknown
    chosen = list(files)
    activities = []
    if formats[0] == flight_recorder.KIND:
        for number, path in enumerate(chosen):
            flight_recorder.read(path, builder)
            if progress:
                progress((number + 1) / len(chosen), f"{number + 1} of {len(chosen)} dumps")
    elif formats[0] == inspector.KIND:
        inspector.read(chosen, builder, progress)
    else:
        activities = profiles.read(chosen, builder, progress)
    return LoadedLogs(builder.finish(str(paths[0])), activities)


def _kind_of(path: Path, in_folder: bool) -> str:
    """Return the format of a file, "" if none recognises it; an unreadable one in a folder is of none."""
    try:
        begin = head(path, HEAD_BYTES)
    except TraceError:
        if in_folder:
            return ""
        raise
    return next((module.KIND for module in FORMATS if module.recognise(begin)), "")
