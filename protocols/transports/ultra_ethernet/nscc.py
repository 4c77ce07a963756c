"""NSCC, the network-signalled congestion control of Ultra Ethernet (specification 1.0, section 3.6.13).

One window covers all paths of a message. Marks report early that a queue grows, delays report late how long it is; the
two distinguish four cases of an acknowledgement:

* not marked, delay below the target: proportional increase, by the distance to the target; or fast increase, after a
  whole window without delay;
* not marked, delay at the target or above: fair increase, the same for every flow;
* marked, delay below the target: nothing, as the load balancer may resolve it;
* marked, delay at the target or above: multiplicative decrease, by the average delay, once per round trip.

Increases are collected and applied every eight packets or round trip, and once per round trip the window grows by eta.
A trimmed packet's header reduces the window by the packet's size, and lets *quick adapt* set the window to the arrivals
of the last period (base round trip + target), if that was less than an eighth of the largest window; marks are then
ignored until the packets in flight have been answered. Missing packets are retransmitted as soon as the window allows.

The rules are those of the specification's pseudo-code (sections 3.6.12 and 3.6.13) and the values of its table 3-82, by
way of a public translation and of two public simulators that follow it [code]: largest and first window 1.5
bandwidth-delay products, gamma 0.8, a decrease by half at most; alpha 4, fi 5 and eta 0.15 packets, fi_scale 1/4, all
for 100 Gbps and 12 us and scaled with the bandwidth-delay product (alpha also with the target); target 0.75 base round
trips, 1 without trimming; smallest time-out 100 us [code: htsim's]. "No delay" is less than 1 us there [code].

Our choices, some where the specification leaves them to the implementer:

* everything is counted in full packets. Acknowledgements are those of the window machinery, one per packet, unless they
  are coalesced: see `coalesced_acks`, also for receiver credits. Packets request an answer when nothing can follow them
  before one, and when they are retransmissions [code: htsim's];
* the average delay weights each sample by the time since the last one, in base round trips (as one of the simulators
  does); a trimmed packet counts with the base round trip [spec];
* the base round trip is learnt from packets sent once, not from headers, which are faster than any packet;
* quick adapt by delay alone (`qa_threshold`) is for switches that do not trim and is enabled there only;
* a packet is declared lost when one sent 1.5 windows (at least five packets) later has been acknowledged [code: an
  option of htsim]; if more than the window is in flight, as after quick adapt, the flight counts instead. Also by a
  time-out as in the window machinery, which here reduces the window by the flight;
* data goes one class below the one of the message, as for NDP; headers and control packets have the first queue;
* with `control = "receiver"` only credit limits the sender, with "both" the window as well. Packets that time out or
  are overtaken return their credit; if nothing is in flight and no credit comes, one packet is sent unrequested;
* no receiver flow control (its penalty is always 0), and no probe for the base round trip. Paths are those of the load
  balancer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    ACK,
    BITMAP,
    BLOCKED,
    MASK_SEQUENCE,
    NACK,
    PULL,
    S_BITS,
    S_DONE,
    S_PACKETS,
    S_RIDER,
    S_TIMEOUTS,
    S_TIMER,
    S_USER,
    S_WORDS,
)
from gradwire.protocols.transports.base import Context, bit, fraction
from gradwire.protocols.transports.common.lost_packets import LOST, note_lost
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.sent_times import BITMAPS, delay_of, stamp
from gradwire.protocols.transports.common.window import (
    BACKOFF,
    CWND,
    FLIGHT,
    HIGHEST,
    NXT,
    SCANNED,
    SHIFT,
    TIMED,
    UNA,
    acknowledge,
    on_probe,
    timeout,
)
from gradwire.protocols.transports.common.window import pull as next_packet
from gradwire.protocols.transports.ndp import go_below
from gradwire.protocols.transports.ultra_ethernet.coalesced_acks import (
    K_EVERY,
    K_FIRST,
    LATE,
    MOST_WINDOW,
    on_data,
    on_late,
    on_trimmed,
    process_bitmap,
)
from gradwire.protocols.transports.ultra_ethernet.nscc_window import (
    ACHIEVED,
    BASE,
    CUT,
    K_RTT,
    K_STEERED,
    RECEIVED,
    TO_IGNORE,
    WIDE,
    adapt,
    average,
    begin,
    shrink,
    update_window,
)
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.base import Count, Flag
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.schema.network.transport_base import Factor, Gain, Transport, check_timeouts
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

# a sender's own words, after those of its window
CREDIT = S_USER + 26  # packets that may be sent
PULLED = S_USER + 27  # pulls received
# a parameter among those of its window
K_BELOW = 18

OVERTAKEN = 5  # packets at least
MOST_BACKOFF = 12
NEVER = 1 << 62
REFERENCE_BYTES, REFERENCE_RTT = 150_000, 12_000_000  # 100 Gbps for 12 us


@njit
def start(M, k, f, now):
    begin(M, k, f, now)
    M[f + CREDIT] = M[k + K_FIRST]
    M[f + HIGHEST] = -1
    M[f + TIMED] = -1
    if M[k + K_BELOW]:
        go_below(M, f)


@njit
def pull(M, k, f, now):
    """Return missing packets, then new ones, as the window and credit allow."""
    if M[k + K_FIRST] and M[f + CREDIT] == 0:
        return BLOCKED
    sequence = next_packet(M, k, f, now)
    if sequence != BLOCKED:
        stamp(M, f, sequence, now)
        if M[k + K_FIRST]:
            M[f + CREDIT] -= 1
        if M[k + K_EVERY] > 1:
            M[f + S_RIDER] = _wants_answer(M, k, f, sequence)
    return sequence


@njit
def _wants_answer(M, k, f, sequence):
    """Return 1 if a packet that leaves now is to be answered at once."""
    again = bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence)
    last = M[f + LOST] == 0 and M[f + NXT] == M[f + S_PACKETS]
    full = M[f + FLIGHT] >= M[f + CWND] >> SHIFT or (M[k + K_FIRST] and M[f + CREDIT] == 0)
    return 1 if again or last or full else 0


@njit
def _lose(M, f, sequence):
    """Queue the retransmission of a packet that was in flight."""
    note_lost(M, f, sequence)
    M[f + FLIGHT] -= 1
    M[f + TO_IGNORE] -= 1
    if sequence == M[f + TIMED]:
        M[f + TIMED] = -1


@njit
def _overtaken(M, k, f):
    """Declare packets lost that much later packets have overtaken."""
    reach = max(M[f + CWND] >> SHIFT if M[k + K_STEERED] else M[k + K_FIRST], M[f + FLIGHT])
    limit = M[f + HIGHEST] - max(reach + (reach >> 1), OVERTAKEN)
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    again = lost + M[f + S_WORDS]
    for sequence in range(max(M[f + UNA], M[f + SCANNED]), limit):
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0 and bit(M, again, sequence) == 0:
            _lose(M, f, sequence)
            M[f + CREDIT] += 1
            shrink(M, k, f, 1)
    M[f + SCANNED] = max(M[f + SCANNED], limit)


@njit
def _missing(M, k, f, sequence, now):
    """Process the NACK for a trimmed packet."""
    bits = M[f + S_BITS]
    if bit(M, bits, sequence) or bit(M, bits + M[f + S_WORDS], sequence):
        return
    _lose(M, f, sequence)
    average(M, f, M[k + K_RTT], now)
    M[f + CUT] = 1
    if not adapt(M, k, f, True, True, 0, now):
        shrink(M, k, f, 1)
    M[f + S_TIMER] = now + timeout(M, k, f)


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an acknowledgement, the answer to a header, or a pull."""
    if kind == NACK:
        _missing(M, k, f, sequence, now)
        return
    if kind == PULL:
        more = (argument - M[f + PULLED]) & MASK_SEQUENCE
        if more <= MASK_SEQUENCE >> 1:  # else it has been overtaken
            M[f + PULLED] += more
            M[f + CREDIT] += more
        return
    late = kind == BITMAP and argument & LATE
    rtt = 0 if late else delay_of(M, f, ACK, sequence, now)
    if kind == BITMAP:
        newly = process_bitmap(M, k, f, sequence, argument, now)
    else:
        newly = acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if M[k + K_FIRST] and M[f + S_TIMER] == 0:
        M[f + S_TIMER] = now + timeout(M, k, f)  # in case no pull comes
    M[f + TO_IGNORE] -= newly
    M[f + RECEIVED] += newly
    M[f + ACHIEVED] += newly
    if rtt and M[k + K_STEERED]:
        M[f + BASE] = min(M[f + BASE], rtt)
        delay = rtt - M[f + BASE]
        average(M, f, delay, now)
        update_window(M, k, f, newly, echo == 1, delay, now)
    _overtaken(M, k, f)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: the packets in flight are lost; if there were none, no credit has come."""
    M[f + S_TIMEOUTS] += 1
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    if M[k + K_FIRST]:
        M[f + CREDIT] = max(M[f + CREDIT] + M[f + FLIGHT], 1)
    shrink(M, k, f, M[f + FLIGHT])
    for sequence in range(M[f + UNA], M[f + NXT]):
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0:
            _lose(M, f, sequence)
    M[f + TIMED] = -1
    if M[f + BACKOFF] < MOST_BACKOFF:
        M[f + BACKOFF] += 1


WINDOW = Precondition(
    lambda at: at.table.control != "receiver", "the sender has no window", 'control = "sender" or "both"'
)
ADAPTS = Precondition(lambda at: at.table.quick_adapt, "it does not adapt quickly", "quick_adapt = true")


class Nscc(Reliable, Transport):
    """NSCC, the sender's congestion control of Ultra Ethernet (specification 1.0, section 3.6.13); over UDP. With
    `control`, the receiver's as well or alone. The values are those of table 3-82, by way of public simulators [code],
    unless marked. Gains are for 100 Gbps and a round trip of 12 us, and are scaled with the bandwidth-delay product."""

    wants_marks = True

    forgets = True
    kind: Literal["nscc"]
    trimming: Flag = True
    """Switches trim packets; decides target_delay and qa_threshold."""
    control: Literal["sender", "receiver", "both"] = "sender"
    """Side that limits sending: the sender by its window (NSCC), the receiver by pulls (RCCC), or both. The receiver's
    pulls divide its line, as in EQDS and NDP; max_window is then sent before the first pull."""
    ack_every: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    """Packets per acknowledgement. Marked packets, retransmissions, and packets that nothing can follow are answered at
    once. htsim has 16,384 bytes, 4 packets of 4 KiB [code]."""
    target_delay: Annotated[PositiveTime | None, WINDOW] = None
    """Target queueing delay; by default 0.75 unloaded round trips, 1 without trimming."""
    max_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] = 1.5
    """Initial and largest window, in bandwidth-delay products."""
    alpha: Annotated[Factor, WINDOW] = 4.0
    """Proportional increase: packets per round trip without any delay; scaled with the target as well."""
    fi: Annotated[Factor, WINDOW] = 5.0
    """Fair increase: packets per round trip."""
    fi_scale: Annotated[Factor, WINDOW] = 0.25
    """Fast increase: packets per acknowledged packet."""
    eta: Annotated[Factor, WINDOW] = 0.15
    """Packets added every round trip in any case."""
    gamma: Annotated[Gain, WINDOW] = 0.8
    """The window falls by this times the share of the average delay above the target."""
    max_md_jump: Annotated[float, Field(ge=0, le=1, strict=True), WINDOW] = 0.5
    """A decrease leaves at least this share of the window."""
    adjust_packets: Annotated[Count, WINDOW] = 8
    """Increases are applied after more than this number of packets."""
    quick_adapt: Annotated[Flag, WINDOW] = True
    """Set the window to the arrivals after a trimmed header or a long delay."""
    qa_gate: Annotated[int, Field(ge=0, le=32, strict=True), WINDOW, ADAPTS] = 3
    """Quick adapt acts if less than the largest window over 2 to this power has arrived in its period."""
    qa_threshold: Annotated[PositiveTime | None, WINDOW, ADAPTS] = None
    """Delays above this are long; by default four times the target without trimming, and never with it."""
    min_rto: PositiveTime = Ps(100_000_000)
    """Smallest time-out [code: htsim]; at least three unloaded round trips."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""
    below_control: Flag = True
    """Data goes one queue below its usual one: headers and control packets go first. Ours."""

    @model_validator(mode="after")
    def _check_order(self) -> Nscc:
        check_timeouts(self.min_rto, self.max_rto)
        return self

    @property
    def wants_trimming(self) -> bool:  # type: ignore[override]
        """True with `trimming`."""
        return self.trimming

    wire = "udp"

    def classes_from(self, priority: int) -> range:
        return range(priority + self.below_control, priority + self.below_control + 1)

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = BITMAPS
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_late = staticmethod(on_late)
    on_trimmed = staticmethod(on_trimmed)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: every packet is ECT."""
        return True

    @staticmethod
    def control_important(settings: dict) -> bool:
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return time-outs, base round trip and target (ps), the largest window, bytes of a packet, gains and counts.

        The largest window is in bandwidth-delay products, gains are in packets << 16, fractions in 20-bit fixed point.

        Raises
        ------
        ScenarioError
            If acknowledgements are coalesced and the window is larger than they can report.
        """
        rtt = context.base_rtt
        trimming = settings["trimming"]
        target = settings["target_delay"] or (3 * rtt // 4 if trimming else rtt)
        size = (rtt << 16) / context.speed / REFERENCE_BYTES
        min_rto = max(settings["min_rto"], 3 * rtt)
        packet = context.payload + UDP_OVERHEAD
        window = settings["max_window"] * (rtt << 16) / (packet * context.speed)
        every, control = settings["ack_every"], settings["control"]
        if every > 1 and window > MOST_WINDOW:
            raise ScenarioError(
                f"cannot report on {int(window)} packets, the max_window of the longest path",
                "transport.ack_every",
                f"1, or larger packets: at most {MOST_WINDOW} in a window",
            )
        return [
            0,
            min_rto,
            max(settings["max_rto"], min_rto),
            rtt,
            target,
            fraction(settings["max_window"]),
            packet,
            round(settings["alpha"] * size * target / REFERENCE_RTT * WIDE),
            round(settings["fi"] * size * WIDE),
            fraction(settings["fi_scale"] * size),
            round(settings["eta"] * size * WIDE),
            fraction(settings["gamma"]),
            fraction(1 - settings["max_md_jump"]),
            settings["qa_gate"],
            settings["qa_threshold"] or (NEVER if trimming else 4 * target),
            rtt,
            settings["adjust_packets"],
            int(settings["quick_adapt"]),
            int(settings["below_control"]),
            every,
            rtt,
            0 if control == "sender" else max(round(window), 1),
            int(control != "receiver"),
        ]
