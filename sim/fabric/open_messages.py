"""Open messages of a fabric in words: what a stall report says about each message that is not delivered.

A stall is a message for which no timer is armed and no packet is on its way. So each line gives the state of both ends:
bytes that have arrived, packets that have been sent and have not ended anywhere, and the timers of sender and receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from gradwire.components import layout as at
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.result import KINDS
from gradwire.scenarios.units import format_time

if TYPE_CHECKING:
    from gradwire.experiment.topology import Network
    from gradwire.sim.fabric.flows import Flows
    from gradwire.sim.fabric.memory import Memory
    from gradwire.sim.fabric.parameters import Bound
    from gradwire.sim.fabric.track import Track

SHOWN = 4
"""Open messages that a report describes one by one."""
PACKETS_SHOWN = 12
"""Transmissions that a report lists of one message."""
PACKET_LOG_HINT = "log their packets with --set output.packet_log=true"


class HasMessages(Protocol):
    """The parts of a `gradwire.sim.fabric.fabric.Fabric` that a report is made from."""

    memory: Memory
    flows: Flows
    network: Network

    @property
    def transports(self) -> Sequence[Bound]:
        """The transports of the run."""

    def packet_log(self) -> Any:
        """Return the transmissions that were logged."""


class _Origin(NamedTuple):
    """The part and tensor that a message belongs to."""

    part: str
    what: str


def describe_open_messages(fabric: HasMessages, tracks: Sequence[Track]) -> list[str]:
    """Return one line for each of the first open messages, the transmissions that were logged of them, and a hint.

    Those that lack the most bytes come first. Returns no lines if every message has been delivered.
    """
    M, records = fabric.memory.M, fabric.flows.records
    flows = np.arange(records.used)
    r = records.receiver(flows)
    is_open = (M[r + at.R_DONE] == 0) & (M[r + at.R_PACKETS] > 0) & (M[r + at.R_BYTES] < at.FOREVER)
    flows, r = flows[is_open], r[is_open]
    numbers = records.message_of(flows)
    flows = flows[np.lexsort((numbers, M[r + at.R_GOT] - M[r + at.R_BYTES]))]
    lines = [_describe(fabric, tracks, flow) for flow in flows[:SHOWN].tolist()]
    if len(flows) > SHOWN:
        lines.append(f"... {len(flows) - SHOWN} more messages under way")
    logged = list(_transmissions(fabric, records.message_of(flows[:SHOWN])))
    if lines:
        lines += logged or [PACKET_LOG_HINT]
    return lines


def _describe(fabric: HasMessages, tracks: Sequence[Track], flow: int) -> str:
    """Return one open message in words: its ends, its size, its tag, and the state of its sender and receiver."""
    M, records = fabric.memory.M, fabric.flows.records
    f, r = records.sender(flow), records.receiver(flow)
    number = int(M[f + at.S_ORDER]) >> at.KEY_ORDER
    src, dst = fabric.flows.book.row(number, [at.B_SRC, at.B_DST])
    names = fabric.network.names
    owner = fabric.transports[int(M[r + at.R_KIND]) & ((1 << at.SET_SHIFT) - 1)].owner
    packets = int(M[r + at.R_PACKETS])
    origin = _origin(tracks, number)
    tag = f" of {origin.part} ({origin.what})" if origin else ""
    return (
        f"message {number}{tag}, {names[src]} -> {names[dst]}, {M[r + at.R_BYTES]} bytes in {packets} packets, "
        f"{M[r + at.R_IMPORTANT]} of them important, may lose {M[r + at.R_ALLOWED]} bytes, over "
        f"{kind_of(owner) or owner.__name__}: {M[r + at.R_GOT]} bytes have arrived; "
        f"{_packets_in_words(M, records.dropped[flow], f, r)}; sender {_sender_in_words(M, f)}; "
        f"receiver's timer {_timer_in_words(M, r + at.R_TIMER)}"
    )


def _packets_in_words(M: Ints, dropped: int, f: int, r: int) -> str:
    """Return the packets that sender and receiver have sent, that were lost, and that have not ended anywhere."""
    sent, answers = int(M[f + at.S_SENT]), int(M[r + at.R_SENT])
    on_the_way = sent + answers - int(M[f + at.S_HEARD]) - int(M[r + at.R_ARRIVED]) - int(dropped)
    return f"{sent} packets sent, {answers} answered, {dropped} lost, {on_the_way} on their way"


def _sender_in_words(M: Ints, f: int) -> str:
    """Return the state of a sender: done, listed at its NIC, or the time of its timer."""
    if M[f + at.S_DONE]:
        return "done"
    listed = "has its turn at the NIC" if M[f + at.S_LISTED] else "is not listed at the NIC"
    return f"{listed}, its timer {_timer_in_words(M, f + at.S_TIMER)}"


def _timer_in_words(M: Ints, word: int) -> str:
    """Return when a timer is due."""
    return f"at {format_time(Ps(int(M[word])))}" if M[word] else "none"


def _origin(tracks: Sequence[Track], number: int) -> _Origin | None:
    """Return the part of a program and the tensor of a message; None for one that no program has sent."""
    for track in tracks:
        for laid in track.live:
            row = number - laid.first
            if not 0 <= row < len(laid):
                continue
            rows = laid.step.messages
            tensor, piece = int(rows.tensor[row]), int(rows.part[row])
            what = f"{KINDS[rows.kind[row]]} of tensor {tensor} part {piece}" if tensor >= 0 else f"part {piece}"
            return _Origin(track.part.table.name, f"{what}, step {laid.number}")
    return None


def _transmissions(fabric: HasMessages, numbers: Ints) -> Iterator[str]:
    """Yield the last transmissions that were logged of some messages, in order of time."""
    from gradwire.sim.telemetry import packet_columns

    columns = packet_columns(cast(Any, fabric), fabric.network)
    rows = np.flatnonzero(np.isin(np.asarray(columns["message"], dtype=np.int64), numbers))
    for row in rows[-PACKETS_SHOWN * max(len(numbers), 1) :].tolist():
        fate = ", lost" if columns["lost"][row] else ""
        yield (
            f"message {columns['message'][row]}: {columns['kind'][row]} {columns['packet'][row]} at "
            f"{format_time(Ps(int(columns['start_ps'][row])))} over {columns['port'][row]}{fate}"
        )
