"""`TensorBoardLog` writes the event file of one run; `write_experiment` declares the axes of a sweep.

The wall time of an event is the simulated time in seconds, so TensorBoard's horizontal axis "relative" shows that.
Values of `BY_TIME` are written a second time with simulated microseconds as steps, which aligns runs exactly.
TensorBoard stores float32.

A run that is resumed or logged again replaces its own event file, recognised by the run's identity in the name. Event
files of other runs stay: a run that finds one in its place takes the next free name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import import_extra
from gradwire.studies.run_logs.logged_run import BY_TIME, LoggedRun

EVENTS = "events.out.tfevents.*"


class TensorBoardLog:
    """Event file of one run, with its parameters for the HParams view."""

    def __init__(self, run: LoggedRun, folder: Path) -> None:
        hparams = import_extra("tensorboard.plugins.hparams.summary_v2", "logging")
        place = _own_place(folder, run.identity)
        self._events = _EventFile(place, run.identity)
        started = hparams.hparams_pb({key: _plain(value) for key, value in run.config.items()}, run.name, 0)
        self._add(started, 0, 0.0)
        if run.text:
            from tensorboard.plugins.text.summary_v2 import text_pb

            self._add(text_pb("scenario", "    " + run.text.replace("\n", "\n    ")), 0, 0.0)  # Markdown for code

    def write(self, step: int, values: Mapping[str, float], clock_s: float) -> None:
        self._add(_scalars(values), step, clock_s)
        by_time = {f"{name}_by_simulated_us": values[name] for name in BY_TIME if name in values}
        if clock_s and by_time:
            self._add(_scalars(by_time), round(clock_s * 1e6), clock_s)

    def close(self, summary: Mapping[str, float], step: int, complete: bool) -> None:
        clock_s = summary.get("final/simulated_s", 0.0)
        if summary:
            self._add(_scalars(summary), step, clock_s)
        self._add(_session_end(complete, clock_s), step, clock_s)
        self._events.close()

    def _add(self, summary: Any, step: int, clock_s: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._events.add_event(Event(wall_time=clock_s, step=step, summary=summary))


def write_experiment(folder: Path, axes: Mapping[str, Sequence[Any]], measures: Iterable[str], identity: str) -> None:
    """Declare parameters with their values, and metrics, of all runs below a folder, for TensorBoard's HParams view."""
    import_extra("tensorboard", "logging")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import Discrete, HParam, Metric, hparams_config_pb

    for earlier in _own_files(folder, identity):
        earlier.unlink()
    events = _EventFile(folder, identity)
    parameters = []
    for axis, values in axes.items():
        distinct = list(dict.fromkeys(float(value) if type(value) is int else _plain(value) for value in values))
        has_one_type = len({type(value) for value in distinct}) == 1
        parameters.append(HParam(axis, Discrete(distinct) if has_one_type else None))
    summary = hparams_config_pb(parameters, [Metric(measure) for measure in measures], 0)
    events.add_event(Event(wall_time=0.0, step=0, summary=summary))
    events.close()


class _EventFile:
    """A new event file. It is written in this thread, so that errors are raised here."""

    def __init__(self, folder: Path, identity: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{EVENTS[:-1]}{int(time.time())}.{identity}").open("wb")
        self._records = RecordWriter(self._file)
        self.add_event(Event(wall_time=0.0, file_version="brain.Event:2"))

    def add_event(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        self._file.close()


def _session_end(complete: bool, clock_s: float) -> Any:
    """Return the record of a run's end; TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    end = SessionEndInfo(status=STATUS_SUCCESS if complete else STATUS_FAILURE, end_time_secs=clock_s)
    content = metadata.create_summary_metadata(HParamsPluginData(session_end_info=end))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def _scalars(values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _plain(value: Any) -> Any:
    """Return a parameter as a number, a boolean or text, which are all that TensorBoard takes."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _own_files(folder: Path, identity: str) -> list[Path]:
    return [file for file in folder.glob(EVENTS) if file.name.endswith(f".{identity}")]


def _own_place(folder: Path, identity: str) -> Path:
    """Return the folder, or "FOLDER-2" and so on if it has event files of other runs. Those of this run are
    removed."""
    for number in count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        own = _own_files(place, identity)
        if own or not any(place.glob(EVENTS)):
            for file in own:
                file.unlink()
            return place
    raise AssertionError
