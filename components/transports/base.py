"""What every transport is made of: compiled functions and a class that names them.

A transport is a class with

* `control_bytes`, `data_overhead` - bytes on the wire of a control packet, and of a data packet beyond its payload;
* `sender_bitmaps`, `receiver_bitmaps` - how many bitmaps of one bit per packet each side of a flow needs;
* `fresh_word` - offset of the sender's word that counts packets sent for the first time, `probe_word` the one that
  counts probes (0 = none);
* `important(settings) -> bool` - whether untagged packets are important (ECN-capable);
* `parameters(settings, context) -> list[int]` - its numbers, at most 32, found at `k` by its functions; asked for every
  base round trip and line rate that flows of a run have (`Context`);
* the functions `start`, `pull`, `on_control` (sender) and `on_data` (receiver), all `@njit`;

and, if it wants more than that,

* `control_important(settings) -> bool` - whether its control packets are important; without it they are;
* `on_timer`, if it ever sets S_TIMER, and `on_probe`, if it sends probes;
* `queues_at_nic = True` and `at_nic(M, k, f, nbytes) -> 0 or 1` - its packets do not take turns with those of other
  flows: they are made as soon as `pull` gives them, and wait at the NIC in the order in which they were made. It is
  told of every one that joins the queue how many bytes it has on the wire, and of every one that leaves it the same,
  negative; then `pull` is asked again. With 0 it says whether packets of this flow do (1) or take turns (0);
* `on_late(M, k, r, now) -> answer` - where its table has `delayed_acks` or `ack_every`: the time has come that a
  receiver has set in R_TIMER; it answers the last data packet that came whole. `for_previous` makes an answer to a data
  packet one to that before it; R_RIDER is what rode on the last one;
* `on_trimmed(M, k, r, sequence, now) -> answer` - a packet of which a switch has left the header only has arrived;
* `pulls = True` - its receivers pace their senders: `with_pulls` asks for PULL packets, which a host sends
  one by one, each with as much time behind it as a full packet of its flow takes on the host's line, its receivers by
  turns; each tells in its argument how many there were so far;
* `stamp_slots(settings, context) -> int` - its packets collect what switches write about their ports (in-band
  telemetry): `pull` writes into S_RIDER which slot the packet it returns has, counting modulo S_SLOTS + 1 (a power of
  two, at most what was asked for); when the receiver has returned it (`with_rider`), the sender finds the stamps of a
  number of switches, SLOT_HOPS, from `M[f + S_STAMPS] + slot * SLOT_WORDS` on.

* `streams = True`, in the class itself - where its table says `connections = "persistent"`, its functions are called
  on the records of a connection that carries message after message, of which S_PACKETS says how far it has been handed
  over; the connection never ends (where S_STREAM is set, S_DONE never is), and messages are done with as far as S_UNA
  (sender) and R_CUMULATIVE (receiver) have come. It has three more functions: `resume(M, k, f, now)`, a message is
  handed over when everything before it has been acknowledged; `forget(M, k, f, packets)` and
  `forget_received(M, k, r, packets)`, the first so many packets are no longer counted (see `window`).

* `pair_words`, `peer_words`, `host_words` - its messages from one host to another share words, and a pace. At the
  sender `pair_words` of its own from `M[f + S_PAIR] + PAIR_USER` on; before them the engine keeps PAIR_NEXT, and
  PAIR_GAP, which a transport writes instead of S_GAP. Of the messages of a pair the one of the best class sends, and of
  these the oldest that has something to send. At the receiver `peer_words` from `M[r + R_PAIR]` on for the pair, and
  `host_words` from `M[r + R_HOST]` on for all messages of the transport to this host. All begin at zero and stay for
  the run. `pair_times`, `peer_times` and `host_times`, in the class itself, are the offsets of those of its words that
  are points in time, as its functions count them: where it says the first of these, at least as `()`, what it keeps can
  be moved on in time, with iterations that are left out (`gradwire.sim.fabric.steady`).

The state of a flow is a record of integers in `M`. A sender's own words begin at `f + S_USER`, a receiver's at
`r + R_USER`; the words before belong to the engine, of which a transport writes S_TIMER (call me then), S_GAP and
S_PACE (pacing), S_DONE (nothing more to send), R_GOT and R_DONE (delivered), and the priority in S_DATA, which
holds from the next packet on. Functions use integers only, so that the
oracle (`gradwire.testing`) can run the very same code uncompiled.

* `sums = True`, in the class itself - a host may acknowledge for many senders, and hear the acknowledgements of many
  receivers as one, so that switches may add up its packets: each data packet is answered by one ACK at once, of which
  the argument is the first packet that has not arrived.

* `variant(settings) -> class` - whose functions carry it out with that table, where that depends on it.

* `forgets = True`, in the class itself - what becomes of a message follows from its own packets and from the times
  between them, not from what time it is, how many messages there were, S_TURN, or what others have left behind. Then
  iterations of a job that begin alike go alike, and are not simulated again (`gradwire.sim.fabric.forward`).

A sequence number that `pull` returns may carry MUST (the packet is made important whatever its tag says); a transport
that does so with all that it sends again says `repeats_important = True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.components.compiled import njit
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps, PsPerByte

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.transport_base import Transport

MUST = 1 << 30  # added to a sequence number by `pull`: never droppable
ONE = 1 << 20  # fixed point for fractions


@njit
def reply(kind, echo, argument, size, count):
    """A receiver's answer as one word: `count` control packets of `kind`, each of `size` bytes (0 = as usual)."""
    return kind | (echo << 3) | (size << 4) | (count << 18) | (argument << 40)


@njit
def with_rider(answer):
    """The same answer, with the rider of the packet it answers in the place of the sequence number."""
    return answer | (1 << 30)


@njit
def with_pulls(answer, pulls):
    """The same answer (0 for none), and `pulls` more pulls (at most 255) for the flow in the host's queue of pulls."""
    return answer | (pulls << 31)


@njit
def for_previous(answer):
    """The same answer, to the data packet that came before this one."""
    return answer | (1 << 39)


@njit
def bit(M, base, index):
    """Bit `index` of the bitmap at `base`: 32 to a word, so that plain integers and machine words agree."""
    return (M[base + (index >> 5)] >> (index & 31)) & 1


@njit
def set_bit(M, base, index):
    """Set bit `index` of the bitmap at `base`."""
    M[base + (index >> 5)] |= 1 << (index & 31)


@njit
def clear_bit(M, base, index):
    """Clear bit `index` of the bitmap at `base`."""
    M[base + (index >> 5)] &= ~(1 << (index & 31))


@njit
def forget_bits(M, base, words, first):
    """Drop the first words of a bitmap: the others move down, and as many zeros follow."""
    for i in range(words - first):
        M[base + i] = M[base + first + i]
    for i in range(words - first, words):
        M[base + i] = 0


@dataclass(frozen=True)
class Context:
    """What a transport may want to know of a flow when it makes the parameters for it, and for all others alike.

    `speed`: picoseconds per byte << 16 of the sender's link; `payload`: bytes of payload of a full packet; `base_rtt`:
    picoseconds that a full packet and its answer take on the flow's own paths, the slowest of them, without queueing;
    `slowest`: picoseconds per byte << 16 of the slowest link on these paths.
    """

    speed: PsPerByte
    payload: Bytes
    base_rtt: Ps
    slowest: PsPerByte


def fraction(value: float) -> int:
    """A fraction in fixed point (20 bits)."""
    return round(value * ONE)


def packets_of(context: Context, overhead: int) -> int:
    """Full packets that the sender sends in an unloaded round trip, rounded up; at least one."""
    return -(-(context.base_rtt << 16) // ((context.payload + overhead) * context.speed))


@njit
def on_timer(M, k, f, now):
    """No timer was set."""


@njit
def at_nic(M, k, f, nbytes):
    """Its packets take turns."""
    return 0


@njit
def on_probe(M, k, r, argument, now):
    """No probe was sent."""
    return 0


@njit
def on_trimmed(M, k, r, sequence, now):
    """Nobody has taught this receiver what a header without its payload means."""
    return 0


@njit
def on_late(M, k, r, now):
    """No timer was set."""
    return 0


@njit
def resume(M, k, f, now):
    """It carries no streams."""


@njit
def forget(M, k, f, packets):
    """It carries no streams."""


@njit
def forget_received(M, k, r, packets):
    """It carries no streams."""


def persists(table: Transport) -> bool:
    """Whether a transport's table asks for connections that carry message after message."""
    return getattr(table, "connections", "fresh") == "persistent"


def control_important(owner: type[Transport], settings: JsonView) -> bool:
    """Whether the control packets of a transport are important; they are unless its class says otherwise."""
    return bool(owner.control_important(settings)) if hasattr(owner, "control_important") else True


def answers_late(table: Transport) -> bool:
    """Whether a transport's table asks for receivers that put off their answers."""
    late = getattr(table, "delayed_acks", 0) or getattr(table, "preset", "classic") == "linux"
    return bool(late) or getattr(table, "ack_every", 1) > 1


def carried_out_by(owner: type[Transport], table: Transport) -> type[Transport]:
    """The class whose functions carry out a transport with this table: its own, or the one that its `variant` names, so
    that what a table does not ask for is not compiled."""
    variant = getattr(owner, "variant", None)
    return owner if variant is None else variant(table.model_dump())


def pulls(owner: type[Transport], table: Transport) -> bool:
    """Whether receivers of a transport with this table pace their senders."""
    return bool(getattr(owner, "pulls", False)) or getattr(table, "control", "sender") in ("receiver", "both")


def rides(owner: type[Transport], table: Transport) -> bool:
    """Whether data packets of a transport with this table carry their sender's S_RIDER."""
    return bool(hasattr(owner, "stamp_slots") or getattr(owner, "rides", False) or getattr(table, "ack_every", 1) > 1)


def queues_at_nic(owner: type[Transport]) -> bool:
    """Whether packets of a transport may wait at the NIC in the order in which they were made."""
    return bool(getattr(owner, "queues_at_nic", False))


def shares(owner: type[Transport]) -> bool:
    """Whether messages of a transport between two hosts share words and a pace."""
    return hasattr(owner, "pair_words")


def check_streams(owner: type[Transport], table: Transport) -> None:
    """Raise ScenarioError if a table asks for them of a transport that has none. What its class inherits does not
    count: a descendant may keep numbers of packets of its own."""
    if persists(table) and not vars(owner).get("streams", False):
        raise ScenarioError(
            f"{table.kind} has no connections that carry message after message", "transport.connections",
            '"fresh", or a class with `streams = True` (docs/extending.md)',
        )  # fmt: skip


class Deaf:
    """Stands in for what a transport does not have."""

    on_timer = staticmethod(on_timer)
    at_nic = staticmethod(at_nic)
    on_probe = staticmethod(on_probe)
    on_trimmed = staticmethod(on_trimmed)
    on_late = staticmethod(on_late)
    resume = staticmethod(resume)
    forget = staticmethod(forget)
    forget_received = staticmethod(forget_received)
