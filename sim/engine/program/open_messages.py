"""Describes a fabric's undelivered messages, with the state of sender and receiver, as lines of a stall report.

A message stalls when no timer is armed for it and none of its packets is under way. So each line gives the state of
both ends: bytes arrived, packets sent that have not ended anywhere, and the timers of sender and receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.programs import LogRow
from gradwire.protocols.registry import class_file
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.loading.registry import kind_of
from gradwire.scenarios.units import format_time

if TYPE_CHECKING:
    from gradwire.sim.engine.memory.engine_memory import EngineMemory
    from gradwire.sim.engine.memory.flows import Flows
    from gradwire.sim.engine.memory.parameters import BoundTransport
    from gradwire.sim.engine.program.track import Track
    from gradwire.topology import Network

MAX_LISTED_MESSAGES = 4
"""Open messages that a report describes."""
MAX_LISTED_PACKETS = 12
"""Transmissions that a report lists per message."""
PACKET_LOG_HINT = "log their packets with --set output.packet_log=true"


class HasMessages(Protocol):
    """The parts of a `gradwire.sim.engine.fabric.Fabric` that a report uses."""

    memory: EngineMemory
    flows: Flows
    network: Network

    @property
    def transports(self) -> Sequence[BoundTransport]:
        """The transports of the run."""

    def packet_log(self) -> Any:
        """Return the logged transmissions."""


class _Origin(NamedTuple):
    """The part and tensor that a message belongs to."""

    part: str
    what: str


def describe_open_messages(fabric: HasMessages, tracks: Sequence[Track]) -> list[str]:
    """Return one line for each of the first open messages, their logged transmissions, and a hint. Those that lack the
    most bytes come first. Returns no lines if every message has been delivered."""
    state, records = fabric.memory.state, fabric.flows.records
    flows = np.arange(records.used)
    r = records.receiver(flows)
    is_open = (
        (view(Receiver, state, r).is_done == 0)
        & (view(Receiver, state, r).packets > 0)
        & (view(Receiver, state, r).nbytes < at.FOREVER)
    )
    flows, r = flows[is_open], r[is_open]
    numbers = records.message_of(flows)
    flows = flows[np.lexsort((numbers, view(Receiver, state, r).received_bytes - view(Receiver, state, r).nbytes))]
    lines = [_describe(fabric, tracks, flow) for flow in flows[:MAX_LISTED_MESSAGES].tolist()]
    if len(flows) > MAX_LISTED_MESSAGES:
        lines.append(f"... {len(flows) - MAX_LISTED_MESSAGES} more messages under way")
    logged = list(_transmissions(fabric, records.message_of(flows[:MAX_LISTED_MESSAGES])))
    if lines:
        lines += logged or [PACKET_LOG_HINT]
    return lines


def summarize_open_messages(fabric: HasMessages, undelivered: int) -> str:
    """Return a summary of the undelivered messages: their number, and the one that lacks most. It does not depend on
    the positions of records."""
    state, records = fabric.memory.state, fabric.flows.records
    r = records.receiver(np.arange(records.used))
    receiver_records = view(Receiver, state, r)
    receivers = r[(receiver_records.is_done == 0) & (receiver_records.packets > 0)]
    if not len(receivers):
        return f"{undelivered} messages are not delivered"
    missing, arrived, kinds = (
        view(Receiver, state, receivers).nbytes - view(Receiver, state, receivers).received_bytes,
        view(Receiver, state, receivers).received_bytes,
        view(Receiver, state, receivers).kind,
    )
    first = int(receivers[np.lexsort((kinds, arrived, -missing))[0]])
    receiver = view(Receiver, state, first)
    owner = fabric.transports[int(receiver.kind) & ((1 << at.SET_SHIFT) - 1)].owner
    received, size = int(receiver.received_bytes), int(receiver.nbytes)
    name = kind_of(owner) or f"{owner.__name__} ({class_file(owner)})"
    return f"one of {undelivered} undelivered messages has {received} of {size} bytes, over transport {name}"


def _describe(fabric: HasMessages, tracks: Sequence[Track], flow: int) -> str:
    """Return a description of an open message: ends, size, tag, and the state of sender and receiver."""
    state, records = fabric.memory.state, fabric.flows.records
    f, r = records.sender(flow), records.receiver(flow)
    number = int(view(Sender, state, f).order) >> at.KEY_ORDER
    src, dst = fabric.flows.book.row(number, [LogRow.src.offset, LogRow.dst.offset])
    names = fabric.network.names
    owner = fabric.transports[int(view(Receiver, state, r).kind) & ((1 << at.SET_SHIFT) - 1)].owner
    receiver = Receiver(state, r)
    packets = int(receiver.packets)
    origin = _origin(tracks, number)
    tag = f" of {origin.part} ({origin.what})" if origin else ""
    return (
        f"message {number}{tag}, {names[src]} -> {names[dst]}, {receiver.nbytes} bytes in {packets} packets, "
        f"{receiver.important_packets} of them important, may lose {receiver.allowed_loss} bytes, over "
        f"{kind_of(owner) or owner.__name__}: {receiver.received_bytes} bytes have arrived; "
        f"{_packets_in_words(state, records.dropped[flow], f, r)}; sender {_sender_in_words(state, f)}; "
        f"receiver's timer {_timer_in_words(state, r + Receiver.timer.offset)}"
    )


def _packets_in_words(state: Ints, dropped: int, f: int, r: int) -> str:
    """Return the packets sent by both ends, the lost ones, and those that have not ended anywhere."""
    sender = view(Sender, state, f)
    receivers = view(Receiver, state, r)
    sent, answers = int(sender.sent), int(receivers.control_sent)
    on_the_way = sent + answers - int(sender.control_received) - int(receivers.arrived) - int(dropped)
    return f"{sent} packets sent, {answers} answered, {dropped} lost, {on_the_way} on their way"


def _sender_in_words(state: Ints, f: int) -> str:
    """Return the state of a sender: done, listed at its NIC, or the time of its timer."""
    sender = view(Sender, state, f)
    if sender.is_done:
        return "done"
    listed = "has its turn at the NIC" if sender.is_listed else "is not listed at the NIC"
    return f"{listed}, its timer {_timer_in_words(state, f + Sender.timer.offset)}"


def _timer_in_words(state: Ints, word: int) -> str:
    """Return when a timer is due."""
    return f"at {format_time(Ps(int(state[word])))}" if state[word] else "none"


def _origin(tracks: Sequence[Track], number: int) -> _Origin | None:
    """Return the part and the tensor of a message; None if no program has sent it."""
    for track in tracks:
        for step in track.live:
            row = number - step.first
            if not 0 <= row < len(step):
                continue
            rows = step.step.messages
            tensor, piece = int(rows.tensor[row]), int(rows.part[row])
            tag = f"{KINDS[rows.kind[row]]} of tensor {tensor} part {piece}" if tensor >= 0 else f"part {piece}"
            return _Origin(track.part.table.name, f"{tag}, step {step.number}")
    return None


def _transmissions(fabric: HasMessages, numbers: Ints) -> Iterator[str]:
    """Yield the last logged transmissions of some messages, in order of time."""
    from gradwire.sim.telemetry import packet_columns

    columns = packet_columns(cast(Any, fabric), fabric.network)
    rows = np.flatnonzero(np.isin(np.asarray(columns["message"], dtype=np.int64), numbers))
    for row in rows[-MAX_LISTED_PACKETS * max(len(numbers), 1) :].tolist():
        fate = ", lost" if columns["lost"][row] else ""
        yield (
            f"message {columns['message'][row]}: {columns['kind'][row]} {columns['packet'][row]} at "
            f"{format_time(Ps(int(columns['start_ps'][row])))} over {columns['port'][row]}{fate}"
        )
