"""The format `kineto` reads PyTorch profiler output, Kineto's Chrome trace JSON, plain or gzipped, of one process.

Gradients are, in this order of preference,

1. `parameters`: one per `torch::autograd::AccumulateGrad` with a shape (recorded with record_shapes=True); DDP buckets,
   if recorded as well, become the trace's groups;
2. `collectives`: one per reduce-scatter (FSDP, ZeRO) or else all-reduce (DDP buckets) of each iteration, with the
   element count that NCCL kernels and `record_param_comms` carry since PyTorch 2.2, or the shape of `c10d::allreduce_`
   (`gradwire.traces.formats.profile.collectives` separates them from other collectives).

On an accelerator a gradient is ready at the end of the last kernel of the compute stream launched before the call of
the collective (or the accumulation), which is what the communication stream waits for; on a CPU, at the call itself. So
waiting for other ranks or for earlier collectives does not count as computing. Launches are matched to kernels by
correlation id; without launches in the file a collective counts as called when its kernel starts. If other kernels have
launches, one without that begins before them was launched before the recording began: it belongs to no recorded
iteration, and is left out and counted.

The model of a step is in `gradwire.traces.formats.profile`: `events` sorts events into `records`, `timeline` checks
kernels against their launch and their stream, `backward` and `iterations` find passes, updates and iterations, `times`
their times. With gradient accumulation a gradient is ready in the last micro-batch. The forward times of single layers
are not recorded: see `estimate_forward`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gradwire.traces.formats.base import Format, ReadOptions
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.events import describe_groups, sort_event
from gradwire.traces.formats.profile.json_events import events
from gradwire.traces.formats.profile.records import Records
from gradwire.traces.formats.source import open_source

ADVICE = "training profiled with record_shapes=True, or under DDP or FSDP with NCCL and PyTorch 2.2 or later"


class Kineto(Format):
    """Output of PyTorch's profiler."""

    kind = "kineto"
    title = "PyTorch profiler JSON"
    offered = 10

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True if the file begins like a JSON object or array of objects."""
        # A letter or a ' after the bracket means other formats: "[rank0 ~ rank7]" of AICB's tables, a Python dict.
        return re.match(rb"\s*[\[{]\s*[^\s\w']", head.removeprefix(b"\xef\xbb\xbf") + b" .") is not None

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a profile, with its complete iterations. TraceError for damaged files and for those of
        several ranks."""
        from gradwire.traces.formats.profile.build import fill_draft

        draft = Draft("kineto", advice=ADVICE)
        header: dict[str, Any] = {}
        records = Records()
        with open_source(path, options.progress, options.notes) as source:
            for event in events(source, header, draft.skipped):
                sort_event(event, records, draft)
        draft.about = _about(header)
        describe_groups(header, records)
        fill_draft(records, draft, int(draft.about.get("rank", 0)), str(path))
        return draft


def _about(header: dict[str, Any]) -> dict[str, Any]:
    """Return the machine and the job in the file's header, for the manifest."""
    about: dict[str, Any] = {}
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict) and "name" in devices[0]:
        about.update(device="cuda", gpu=str(devices[0]["name"]))
    job = header.get("distributedInfo")
    if isinstance(job, dict):
        for key in ("backend", "world_size", "rank"):
            if isinstance(job.get(key), (int, str)) and not isinstance(job[key], bool):
                about[key] = job[key]
    if not isinstance(about.get("rank", 0), int) or about.get("rank", 0) < 0:
        del about["rank"]
    return about
