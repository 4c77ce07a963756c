"""Readers of TensorBoard's event files and of W&B's offline files, for comparison with tables."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
"""Sizes of LevelDB's log format, in which W&B writes."""


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return (step, wall time, value) of all scalars in one folder, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def hparams_of(folder: Path) -> dict[str, Any]:
    """Return the parameters of the run in one folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    started = metadata.parse_session_start_info_plugin_data(content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in started.hparams.items()}


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of an offline file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), HEADER, []  # the first block begins with W&B's own header of 7 bytes
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (1, 4):  # full, last
            yield Record.FromString(b"".join(parts))
            parts = []


def wandb_run(file: Path) -> dict[str, Any]:
    """Return name, group, config, history and summary of an offline run that has ended. W&B's process writes the last
    records a moment after `finish`."""
    while "exit_code" not in (run := _wandb_run(file)):
        time.sleep(0.02)
    return run


def _wandb_run(file: Path) -> dict[str, Any]:
    run: dict[str, Any] = {"history": [], "summary": {}, "config": {}}
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run |= {"name": record.run.display_name, "group": record.run.run_group, "project": record.run.project}
            run["config"] |= _values(record.run.config.update)
        elif kind == "config":
            run["config"] |= _values(record.config.update)
        elif kind == "history":
            run["history"].append(_values(record.history.item))
        elif kind == "summary":
            run["summary"] |= _values(record.summary.update)
        elif kind == "exit":
            run["exit_code"] = record.exit.exit_code
    return run


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
