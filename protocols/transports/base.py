"""The contract of transports: compiled functions and a class that names them.

A transport is a class with

* `control_bytes`, `data_overhead`: bytes on the wire of a control packet, and of a data packet beyond its payload;
* `sender_bitmaps`, `receiver_bitmaps`: number of bitmaps with one bit per packet at each side of a flow;
* `fresh_word`: offset of the sender's word that counts packets sent for the first time; `probe_word`: of the word that
  counts probes (0 = none);
* `important(settings) -> bool`: True if untagged packets are important (ECN-capable);
* `parameters(settings, context) -> list[int]`: at most 32 numbers, at `k` for its functions; called for every base
  round trip and line rate of a run's flows (`Context`);
* the functions `start`, `pull`, `on_control` (sender) and `on_data` (receiver), all `@njit`;

and optionally

* `control_important(settings) -> bool`: True if its control packets are important, which is the default;
* `on_timer`, if it ever sets S_TIMER, and `on_probe`, if it sends probes;
* `queues_at_nic = True` and `at_nic(M, k, f, nbytes) -> 0 or 1`: its packets do not take turns with those of other
  flows, but are made as soon as `pull` returns them and wait at the NIC in that order. `at_nic` gets the bytes on the
  wire of every packet that joins the queue, and the negative number when it leaves; then `pull` is called again. With
  `nbytes` 0 it returns 1 if packets of this flow wait at the NIC, 0 if they take turns;
* `on_late(M, k, r, now) -> answer`, if its table has `delayed_acks` or `ack_every`: the time in R_TIMER has come; it
  answers the last data packet that arrived untrimmed. `for_previous` turns an answer into one to the data packet
  before; R_RIDER is the rider of the last packet;
* `on_trimmed(M, k, r, sequence, now) -> answer`: a packet that a switch has trimmed to its header has arrived;
* `pulls = True`: its receivers pace their senders. `with_pulls` requests PULL packets, which a host sends one by one,
  in turn for its receivers, spaced by the time of a full packet of the flow on the host's line; the argument of each is
  the number of pulls so far;
* `stamp_slots(settings, context) -> int`: its packets collect in-band telemetry of the switches' ports. `pull` writes
  the slot of the packet it returns into S_RIDER, counting modulo S_SLOTS + 1 (a power of two, at most the returned
  number); when the receiver has returned the rider (`with_piggyback`), the sender reads the stamps of SLOT_HOPS
  switches from `M[f + S_STAMPS] + slot * SLOT_WORDS` on.

* `streams = True`, in the class itself: if its table has `connections = "persistent"`, its functions work on the
  records of a connection that carries message after message, whose S_PACKETS counts the packets handed over so far. The
  connection never ends (if S_STREAM is set, S_DONE never is), and messages end when S_UNA (sender) and R_CUMULATIVE
  (receiver) have passed them. It has three more functions: `resume(M, k, f, now)`, called when a message is handed over
  after everything before it was acknowledged; `forget(M, k, f, packets)` and `forget_received(M, k, r, packets)`, which
  renumber packets without the first `packets` ones (see `window`). `sender_at_rest` and `receiver_at_rest`, in the
  class itself, describe its words in the records of a connection as `pair_at_rest` does those of a pair (below), by
  offsets from `f` and `r`.

* `pair_words`, `peer_words`, `host_words`: its messages from one host to another share words, and a pace. The sender
  has `pair_words` from `M[f + S_PAIR] + PAIR_USER` on; before them the engine keeps PAIR_NEXT, and PAIR_GAP, which a
  transport writes instead of S_GAP. Of a pair's messages, the oldest one of the best class with packets to send sends.
  The receiver has `peer_words` from `M[r + R_PAIR]` on for the pair, and `host_words` from `M[r + R_HOST]` on for all
  messages of the transport to this host. All begin at zero and last for the run. `pair_at_rest`, `peer_at_rest` and
  `host_at_rest`, in the class itself, list the words that are points in time, or have no meaning while no message is in
  flight, by offsets as its functions use them (`gradwire.protocols.transports.common.persistent_state`). If the class
  has the first of these, at least as `AtRest()`, its state can be compared, and moved in time with skipped iterations
  (`gradwire.sim.engine.fast_forward.fast_forward`, `steady`).

The state of a flow is a record of integers in `M`. A sender's own words begin at `f + S_USER`, a receiver's at `r +
R_USER`. The words before belong to the engine; of them a transport writes S_TIMER (time of the next call), S_GAP and
S_PACE (pacing), S_DONE (nothing left to send), R_GOT and R_DONE (delivered), and the priority in S_DATA, which applies
from the next packet on. Functions use integers only, so that the oracle (`gradwire.testing`) can run the same code
uncompiled.

* `sums = True`, in the class itself: a host may acknowledge for many senders, and handle the acknowledgements of many
  receivers as one, so that switches may sum its packets: each data packet is answered at once by one ACK whose argument
  is the first packet that has not arrived.

* `variant(settings) -> class`: the class whose functions carry it out, if that depends on the table.

* `forgets = True`, in the class itself: the fate of a message depends on its own packets, the times between them, and
  the words of its connection or pair, but not on the absolute time, the number of messages or S_TURN. Then iterations
  of a job with equal starts are equal and are not simulated again (`gradwire.sim.engine.fast_forward.fast_forward`).
  Instead, `further_dependence(settings) -> str` may describe what else it depends on with this table, "" for nothing.

A sequence number that `pull` returns may carry MUST (the packet is important whatever its tag); a transport that sets
it for all retransmissions has `repeats_important = True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.jit.compiled import njit
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps, PsPerByte

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport

IMPORTANT_FLAG = 1 << 30  # added to a sequence number by `pull`: never droppable
ONE = 1 << 20  # fixed point for fractions


@njit
def reply(kind, echo, argument, size, count):
    """Return a receiver's answer as one word: `count` control packets of `kind`, each of `size` bytes (0 = default)."""
    return kind | (echo << 3) | (size << 4) | (count << 18) | (argument << 40)


@njit
def with_piggyback(answer):
    """Return the answer with the rider of the answered packet in place of the sequence number."""
    return answer | (1 << 30)


@njit
def with_pulls(answer, pulls):
    """Return the answer (0 for none) with `pulls` more pulls (at most 255) for the flow in the host's queue of
    pulls."""
    return answer | (pulls << 31)


@njit
def for_previous(answer):
    """Return the answer, addressed to the previous data packet."""
    return answer | (1 << 39)


@njit
def bit(M, base, index):
    """Return bit `index` of the bitmap at `base`: 32 bits per word, so that plain integers and machine words agree."""
    return (M[base + (index >> 5)] >> (index & 31)) & 1


@njit
def set_bit(M, base, index):
    M[base + (index >> 5)] |= 1 << (index & 31)


@njit
def clear_bit(M, base, index):
    M[base + (index >> 5)] &= ~(1 << (index & 31))


@njit
def forget_bits(M, base, words, first):
    """Drop the words of a bitmap before `first`: the others move down, followed by zeros."""
    for i in range(words - first):
        M[base + i] = M[base + first + i]
    for i in range(words - first, words):
        M[base + i] = 0


@dataclass(frozen=True)
class Context:
    """Properties of flows for which a transport computes one set of parameters. `speed`: picoseconds per byte << 16 of
    the sender's link; `payload`: payload bytes of a full packet; `base_rtt`: picoseconds of a full packet and its
    answer on the slowest of the flow's paths, without queueing; `slowest`: picoseconds per byte << 16 of the slowest
    link on these paths."""

    speed: PsPerByte
    payload: Bytes
    base_rtt: Ps
    slowest: PsPerByte


def fraction(value: float) -> int:
    """Return a fraction in fixed point (20 bits)."""
    return round(value * ONE)


def packets_of(context: Context, overhead: int) -> int:
    """Return the full packets that the sender sends in an unloaded round trip, rounded up; at least one."""
    return -(-(context.base_rtt << 16) // ((context.payload + overhead) * context.speed))


@njit
def on_timer(M, k, f, now):
    """Do nothing: no timer was set."""


@njit
def at_nic(M, k, f, nbytes):
    """Return 0: packets take turns."""
    return 0


@njit
def on_probe(M, k, r, argument, now):
    """Return 0: no probe was sent."""
    return 0


@njit
def on_trimmed(M, k, r, sequence, now):
    """Return 0: this receiver ignores trimmed packets."""
    return 0


@njit
def on_late(M, k, r, now):
    """Return 0: no timer was set."""
    return 0


@njit
def resume(M, k, f, now):
    """Do nothing: the transport has no streams."""


@njit
def forget(M, k, f, packets):
    """Do nothing: the transport has no streams."""


@njit
def forget_received(M, k, r, packets):
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
    """Return True if data packets of a transport with this table carry their sender's S_RIDER."""
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
