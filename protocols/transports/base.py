"""Documents the contract of transports, a class with constants, parameters and compiled functions, and provides their
helpers and defaults.

Functions
---------
All are `@njit` and use integers only, so that the oracle (`gradwire.testing`) can run them uncompiled. `params`, `flow`
and `receiver` are records: a transport derives classes from `Parameters`, `Sender` and `Receiver`, with fields of its
own that begin at zero, and declares them as the types of its arguments. The sender has

* `start(params, flow, now)`: the message enters the host;
* `pull(params, flow, now)`: returns the packet to send now, BLOCKED, or PULL_PROBE + the argument of a probe;
* `on_control(params, flow, kind, sequence, argument, echo, now)`: a control packet has arrived; `sequence` is that of
  the data packet it answers, `echo` the mark it reports;
* `on_timer(params, flow, now)`: the time in `flow.timer` has come; needed if it is ever set.

The receiver returns `reply(...)`, the answer, or 0 for none from

* `on_data(params, receiver, sequence, size, ce, now)`: a data packet has arrived, marked if `ce` is 1;
* `on_probe(params, receiver, argument, now)`: a probe has arrived; needed if the sender sends any;
* `on_trimmed(params, receiver, sequence, now)`: a packet has arrived that a switch trimmed to its header;
* `on_late(params, receiver, now)`: the time in `receiver.timer` has come; answers the last untrimmed data packet, or
  through `for_previous` the one before. Needed for tables with `delayed_acks` or `ack_every`.

`start`, `pull`, `on_control` and `on_data` are required.

Engine fields
-------------
A transport may read all fields of `Sender` and `Receiver` (`gradwire.jit.records.flows`). It writes

* `flow.timer`: the next call of `on_timer`, 0 for none; `receiver.timer` likewise for `on_late`;
* `flow.gap` and `flow.next_start`: pacing;
* `flow.is_done = 1` if nothing is left to send; `flow.timeouts`, its count;
* `receiver.received_bytes`, and `receiver.is_done = 1` at delivery;
* the priority in `flow.data_header`, for the packets from the next one on;
* `flow.piggyback`, if packets carry one: 22 bits, for the packet that `pull` returns.

Attributes
----------
control_bytes, data_overhead : bytes on the wire of a control packet, and of a data packet beyond its payload.
sender_bitmaps, receiver_bitmaps : number of bitmaps, with one bit per packet, at either end. The receiver's first one
    says which packets have arrived.
fresh_word, probe_word : offsets of the sender's fields that count packets sent for the first time, and probes (0 =
    no probes): `WindowFlow.nxt.offset`.
important(settings) : returns True if untagged packets are important (ECN-capable).
parameters(settings, context) : returns at most 32 integers, the fields of `params` in their order. It is called for
    every base round trip and line rate of a run's flows (`Context`).

Optional attributes
-------------------
control_important(settings) : returns True if control packets are important, which is the default.
variant(settings) : returns the class whose functions carry it out, if that depends on the table.
repeats_important = True : every retransmission is `sequence | IMPORTANT_FLAG`: important whatever its tag.
forgets = True : the fate of a message depends on its packets, the times between them, and the fields of its connection
    or pair, but not on the absolute time, the number of messages or `turn`. Then iterations of a job with equal starts
    are equal and are not simulated again (`gradwire.sim.engine.fast_forward.fast_forward`).
further_dependence(settings) : instead of `forgets`, describes what else it depends on with this table, "" for nothing.
sums = True : each data packet is answered at once by one ACK whose argument is the first packet that has not arrived.
    So switches may sum its packets: a host acknowledges for many senders, and a sender handles the acknowledgements of
    many receivers as one. In the class itself.

Queue at the NIC
    `queues_at_nic = True` and `at_nic(params, flow, nbytes)`: packets do not take turns with those of other flows, but
    wait at the NIC in the order in which `pull` returns them. `at_nic` gets the bytes on the wire of every packet that
    joins the queue, and the negative number when one leaves; then `pull` is called again. With `nbytes` 0 it returns 1
    if packets of this flow wait at the NIC, 0 if they take turns.

Pulls
    `pulls = True`: receivers pace their senders. `with_pulls` requests PULL packets, which a host sends one by one, in
    turn for its receivers, spaced by the time of a full packet of the flow on the host's line. The argument of each is
    the number of pulls so far.

Telemetry
    `stamp_slots(settings, context)` returns a number of slots: packets collect the state of the switches' ports in
    `Stamps`. `pull` sets `flow.piggyback` to the slot of the packet it returns, counting modulo `flow.stamp_mask` + 1
    (a power of two, at most the returned number). When the receiver has returned it (`with_piggyback`), the sender
    reads `Stamps(flow, flow.stamps + slot * Stamps.WORDS)`.

Connections
    `streams = True`, in the class itself: with `connections = "persistent"` in its table, the functions work on the
    records of a connection that carries message after message; `flow.packets` counts the packets handed over so far. A
    connection never ends (if `flow.stream` is set, `flow.is_done` never is). Its messages end when `una` (the sender's
    first field) and `cumulative` (the receiver's first field) have passed them; the sender's second field is the next
    new packet. It also has

    * `resume(params, flow, now)`: a message is handed over after everything before it was acknowledged;
    * `forget(params, flow, packets)` and `forget_received(params, receiver, packets)`: renumber packets without the
      first `packets` ones (see `window`);
    * `sender_at_rest` and `receiver_at_rest`, in the class itself: as `pair_at_rest` below.

Shared state
    `pair_words`, `peer_words`, `host_words`: number of words that messages from one host to another share: at the
    sender (`flow.pair`, a record derived from `Pair`, whose `gap` replaces that of the flow), at the receiver for the
    pair (`receiver.pair`), and at the receiver for all messages to its host (`receiver.host`). All begin at zero and
    last for the run. Of a pair's messages, the oldest one of the best class with packets to send sends.
    `pair_at_rest`, `peer_at_rest` and `host_at_rest`, in the class itself, are the `PersistentState` of these records:
    which fields are points in time, or have no meaning while nothing is in flight. If the class has the first of them,
    at least as `PersistentState()`, its state can be compared, and moved in time with skipped iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.jit.records.replies import for_previous as for_previous
from gradwire.jit.records.replies import reply as reply
from gradwire.jit.records.replies import with_piggyback as with_piggyback
from gradwire.jit.records.replies import with_pulls as with_pulls
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps, PsPerByte

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport

IMPORTANT_FLAG = 1 << 30  # added to a sequence number by `pull`: never droppable
FRACTION_BITS = 20  # binary digits of a fraction in fixed point
ONE = 1 << FRACTION_BITS


@njit
def fixed_mul(value: int, fraction: int) -> int:
    """Return a value times a fraction in fixed point, rounded down."""
    return value * fraction >> FRACTION_BITS


@njit
def bit(bitmap: Words, index: int) -> int:
    """Return bit `index` of a bitmap: 32 bits per word, so that plain integers and machine words agree."""
    return (bitmap[index >> 5] >> (index & 31)) & 1


@njit
def set_bit(bitmap: Words, index: int) -> None:
    """Set bit `index` of a bitmap."""
    bitmap[index >> 5] |= 1 << (index & 31)


@njit
def clear_bit(bitmap: Words, index: int) -> None:
    """Clear bit `index` of a bitmap."""
    bitmap[index >> 5] &= ~(1 << (index & 31))


@njit
def forget_bits(bitmaps: Words, start: int, words: int, first: int) -> None:
    """Drop the words of a bitmap before `first`. The others move down, followed by zeros. `start`: index of the
    bitmap's first word in `bitmaps`."""
    for i in range(words - first):
        bitmaps[start + i] = bitmaps[start + first + i]
    for i in range(words - first, words):
        bitmaps[start + i] = 0


@dataclass(frozen=True)
class Context:
    """Properties of flows for which a transport computes one set of parameters.

    Attributes
    ----------
    speed : of the sender's link (ps/B << 16).
    payload : of a full packet (bytes).
    base_rtt : time of a full packet and its answer on the slowest of the flow's paths, without queueing (ps).
    slowest : speed of the slowest link on these paths (ps/B << 16).
    """

    speed: PsPerByte
    payload: Bytes
    base_rtt: Ps
    slowest: PsPerByte


def fraction(value: float) -> int:
    """Return a fraction in fixed point."""
    return round(value * ONE)


def packets_of(context: Context, overhead: int) -> int:
    """Return the full packets that the sender sends in an unloaded round trip, rounded up; at least one."""
    return -(-(context.base_rtt << 16) // ((context.payload + overhead) * context.speed))


@njit
def on_timer(params: Parameters, flow: Sender, now: int) -> None:
    """Do nothing: no timer was set."""


@njit
def at_nic(params: Parameters, flow: Sender, nbytes: int) -> int:
    """Return 0: packets take turns."""
    return 0


@njit
def on_probe(params: Parameters, receiver: Receiver, argument: int, now: int) -> int:
    """Return 0: no probe was sent."""
    return 0


@njit
def on_trimmed(params: Parameters, receiver: Receiver, sequence: int, now: int) -> int:
    """Return 0: this receiver ignores trimmed packets."""
    return 0


@njit
def on_late(params: Parameters, receiver: Receiver, now: int) -> int:
    """Return 0: no timer was set."""
    return 0


@njit
def resume(params: Parameters, flow: Sender, now: int) -> None:
    """Do nothing: the transport has no streams."""


@njit
def forget(params: Parameters, flow: Sender, packets: int) -> None:
    """Do nothing: the transport has no streams."""


@njit
def forget_received(params: Parameters, receiver: Receiver, packets: int) -> None:
    """Do nothing: the transport has no streams."""


def is_persistent(table: Transport) -> bool:
    """Return True if a transport's table asks for persistent connections."""
    return getattr(table, "connections", "fresh") == "persistent"


def control_important(owner: type[Transport], settings: JsonView) -> bool:
    """Return True if the control packets of a transport are important, which is the default."""
    return bool(owner.control_important(settings)) if hasattr(owner, "control_important") else True


def delays_acks(table: Transport) -> bool:
    """Return True if a transport's table asks for delayed acknowledgements."""
    late = getattr(table, "delayed_acks", 0) or getattr(table, "preset", "classic") == "linux"
    return bool(late) or getattr(table, "ack_every", 1) > 1


def implementation_of(owner: type[Transport], table: Transport) -> type[Transport]:
    """Return the class whose functions carry out a transport with this table. It is the class itself or its `variant`,
    so that unused rules are not compiled."""
    variant = getattr(owner, "variant", None)
    return owner if variant is None else variant(table.model_dump())


def pulls(owner: type[Transport], table: Transport) -> bool:
    """Return True if receivers of a transport with this table pace their senders."""
    return bool(getattr(owner, "pulls", False)) or getattr(table, "control", "sender") in ("receiver", "both")


def rides(owner: type[Transport], table: Transport) -> bool:
    """Return True if data packets of a transport with this table carry a piggyback."""
    return bool(hasattr(owner, "stamp_slots") or getattr(owner, "rides", False) or getattr(table, "ack_every", 1) > 1)


def queues_at_nic(owner: type[Transport]) -> bool:
    """Return True if packets of a transport may wait at the NIC in the order in which they were made."""
    return bool(getattr(owner, "queues_at_nic", False))


def shares_pair_state(owner: type[Transport]) -> bool:
    """Return True if messages of a transport between two hosts share words and a pace."""
    return hasattr(owner, "pair_words")


def check_streams(owner: type[Transport], table: Transport) -> None:
    """Raise ScenarioError if a table asks a transport without streams for them. An inherited `streams` does not count:
    a derived class may keep packet numbers of its own."""
    if is_persistent(table) and not vars(owner).get("streams", False):
        raise ScenarioError(
            f"{table.kind} has no persistent connections",
            "transport.connections",
            '"fresh", or a class with `streams = True` (docs/extending.md)',
        )


class NoOpTransport:
    """Default functions of a transport."""

    on_timer = staticmethod(on_timer)
    at_nic = staticmethod(at_nic)
    on_probe = staticmethod(on_probe)
    on_trimmed = staticmethod(on_trimmed)
    on_late = staticmethod(on_late)
    resume = staticmethod(resume)
    forget = staticmethod(forget)
    forget_received = staticmethod(forget_received)
