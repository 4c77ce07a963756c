"""The format `goal` reads schedules of LogGOPSim and ATLAHS in the Group Operation Assembly Language, text or binary.

    num_ranks 2
    rank 0 {
    l1: calc 8000                      nanoseconds
    l2: send 4096b to 1 tag 7
    l2 requires l1
    }
    rank 1 {
    l1: recv 4096b from 0 tag 7
    }

A file holds the graphs of all ranks [code: txt2bin.re, Parser.hpp]. The k-th send of two ranks and a tag belongs to the
k-th receive. `requires` waits for the end of an operation. `irequires` waits for its start, so here for what that
operation waits for itself; it is counted. `cpu 0` is the GPU of a rank, other numbers are its CPU; `nic` is left out.

A schedule has no gradients, of which a trace needs one: a tensor stands for the bytes that a rank sends in the mean,
ready when the first rank has computed everything. Jobs play the graphs.
"""

from __future__ import annotations

import re
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import Format, ReadOptions
from gradwire.traces.formats.draft import PS_PER_NS, Draft, Timing, gradient_of_bytes
from gradwire.traces.rank_graphs import SEND


class Goal(Format):
    """Schedules of LogGOPSim and ATLAHS."""

    kind = "goal"
    title = "GOAL schedule of LogGOPSim or ATLAHS, text or binary"
    ranks = True
    offered = 15

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True for the number of a binary schedule, or for text that begins with num_ranks."""
        from gradwire.traces.formats.goal_schedules.binary import COOKIE

        text = re.sub(rb"/\*.*?\*/|//[^\n]*", b"", head, flags=re.DOTALL).lstrip()
        return head[:8] == COOKIE or re.match(rb"num_ranks\s+\d", text) is not None

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a schedule with the graphs of all ranks. TraceError for damaged files, sends without
        receives, and graphs that wait for each other in a circle."""
        from gradwire.traces.formats.chakra_graphs.ranks import join_graphs
        from gradwire.traces.formats.goal_schedules.binary import COOKIE, read_binary
        from gradwire.traces.formats.goal_schedules.text import read_text
        from gradwire.traces.formats.source import head

        draft = Draft("goal", how="compute times of the schedule", layers=["schedule"])
        is_binary = head(path, 8)[:8] == COOKIE
        graphs = (read_binary if is_binary else read_text)(path, options, draft)
        draft.graphs = join_graphs(graphs, str(path))
        sent = sum(call.bytes for call in draft.graphs.calls if call.kind == SEND)
        if not sent:
            raise TraceError("has no send", str(path), "a schedule in which ranks send to each other")
        computed = int(draft.graphs.effort_ps[draft.graphs.rank == draft.graphs.rank[0]].sum())
        draft.gradients = [
            gradient_of_bytes("sent", max(sent // draft.graphs.ranks, 1), options.dtype, 0, draft.skipped)
        ]
        draft.doubtful["tensor that stands for the bytes a rank sends, since GOAL has no gradients"] = 1
        third = computed // PS_PER_NS // 3 * PS_PER_NS  # a third forward, as for graphs without names
        draft.iterations = [Timing([0], [third], [computed], computed)]
        return draft
