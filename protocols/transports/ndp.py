"""NDP (Handley et al., SIGCOMM '17): a first window at line rate, trimmed packets, and receivers that pull.

Known from the paper: switches keep queues of eight packets and trim the packets that do not fit to their headers;
headers, acknowledgements and pulls precede data; a sender starts with a window of packets at line rate and then sends
only when pulled; a receiver answers a packet with an acknowledgement and a header with a negative one, at once, and
requests one more packet each time; the pulls of all its senders share one queue, which it serves at the rate of its
link, senders in turn; each pull carries the number of pulls so far, so that lost and overtaken ones do no harm;
retransmissions go first; when a message is complete its pulls are dropped; a sender has a time-out for packets without
any report, and its packets are sprayed over all paths [recalled; pull numbers, queue and rules of sending also in htsim
[code]]. The first window must be at least a bandwidth-delay product; htsim's is 15 packets [code].

Our choices:

* the first window is the unloaded bandwidth-delay product of the longest path, plus one packet;
* data goes one class below the one of the message, so that by default headers and control packets have the first queue
  of every switch to themselves. Queues are strict priority or round robin; the paper's ten headers per packet are left
  out;
* a receiver knows the size of the message, so it requests only packets that are still to be sent: the number of packets
  and of trimmed headers, less the first window. With the paper's one pull per arrival the pulls at the end of a message
  find nothing to send, and the receiver's link idles instead of serving other senders;
* acknowledgements also carry the number of pulls. A pull that finds nothing to send waits: the answer to a header, on
  another path, may come after it;
* the time-out is RFC 6298's over the smallest one, 1 ms; time counts per packet since it was sent. Packets that time
  out have left the network: as many may be sent at once. If nothing is in flight but no pulls come, one packet is sent
  unrequested;
* no packet is returned to its sender: a header that finds no room is lost. Paths are those of the load balancer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    A_PRIORITY,
    ACK,
    BLOCKED,
    MASK_SEQUENCE,
    NACK,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_GOT,
    R_PACKETS,
    R_PULLED,
    R_PULLS,
    R_USER,
    S_BITS,
    S_DATA,
    S_DONE,
    S_PACKETS,
    S_TIMEOUTS,
    S_TIMER,
    S_USER,
    S_WORDS,
)
from gradwire.protocols.transports.base import Context, bit, clear_bit, packets_of, reply, set_bit, with_pulls
from gradwire.protocols.transports.common.lost_packets import LOST, next_lost, note_lost
from gradwire.protocols.transports.common.sent_times import BITMAPS, SCOREBOARD, stamp
from gradwire.protocols.transports.common.window import (
    BACKOFF,
    K_INITIAL,
    NXT,
    SRTT,
    TIMED,
    TIMED_AT,
    UNA,
    on_probe,
    sample,
    timeout,
)
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.network.transport_base import Transport, Window, check_timeouts
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

# a sender's own words, after those of the window machinery, of which it uses the timer and the retransmission queue.
# Bitmaps: packets acknowledged, to be retransmitted, and in flight
CREDIT = S_USER + 21  # packets that may be sent
OUT = S_USER + 22  # packets in flight
PULLED = S_USER + 23  # pulls received
HEARD_AT = S_USER + 24
# a receiver's own word
CUT = R_USER  # trimmed headers of packets that it lacked

# parameter, after those of the timer
K_BELOW = 3

LOWEST = 7
MOST_BACKOFF = 12


@njit
def go_below(M, f):
    """Move data one class down, and leave the message's class to headers and control packets."""
    if (M[f + S_DATA] >> A_PRIORITY) & 7 < LOWEST:
        M[f + S_DATA] += 1 << A_PRIORITY


@njit
def start(M, k, f, now):
    M[f + CREDIT] = M[k + K_INITIAL]
    M[f + TIMED] = -1
    M[f + HEARD_AT] = now
    if M[k + K_BELOW]:
        go_below(M, f)


@njit
def pull(M, k, f, now):
    """Return retransmissions, then new packets, as far as pulled."""
    if M[f + CREDIT] == 0:
        return BLOCKED
    if M[f + LOST] > 0:
        sequence = next_lost(M, f)
    elif M[f + NXT] < M[f + S_PACKETS]:
        sequence = M[f + NXT]
        M[f + NXT] = sequence + 1
        if M[f + TIMED] < 0:
            M[f + TIMED] = sequence
            M[f + TIMED_AT] = now
    else:
        return BLOCKED
    M[f + CREDIT] -= 1
    M[f + OUT] += 1
    set_bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence)
    stamp(M, f, sequence, now)
    if M[f + S_TIMER] == 0:
        M[f + S_TIMER] = now + timeout(M, k, f)
    return sequence


@njit
def _lose(M, f, sequence):
    """Record that a packet is no longer in flight, and queue its retransmission."""
    clear_bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence)
    M[f + OUT] -= 1
    note_lost(M, f, sequence)
    if sequence == M[f + TIMED]:
        M[f + TIMED] = -1


@njit
def _acknowledge(M, f, sequence, now):
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    out = lost + M[f + S_WORDS]
    if bit(M, bits, sequence):
        return
    set_bit(M, bits, sequence)
    if bit(M, lost, sequence):
        clear_bit(M, lost, sequence)
        M[f + LOST] -= 1
    else:
        clear_bit(M, out, sequence)
        M[f + OUT] -= 1
    if M[f + SRTT] > 0:
        M[f + BACKOFF] = 0
    if sequence == M[f + TIMED]:
        sample(M, f, now - M[f + TIMED_AT])
    una = M[f + UNA]
    while una < M[f + S_PACKETS] and bit(M, bits, una):
        una += 1
    M[f + UNA] = una
    if una == M[f + S_PACKETS]:
        M[f + S_DONE] = 1
        M[f + S_TIMER] = 0


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an answer or a pull; each carries the number of pulls."""
    more = (argument - M[f + PULLED]) & MASK_SEQUENCE
    if more <= MASK_SEQUENCE >> 1:
        M[f + PULLED] += more
        M[f + CREDIT] += more
    M[f + HEARD_AT] = now
    if kind == ACK:
        _acknowledge(M, f, sequence, now)
    elif kind == NACK and bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence):
        _lose(M, f, sequence)


@njit
def on_timer(M, k, f, now):
    """Retransmit packets that have been in flight too long; if there are none, send one packet unrequested."""
    wait = timeout(M, k, f)
    times = M[f + S_BITS] + SCOREBOARD * M[f + S_WORDS]
    out = M[f + S_BITS] + 2 * M[f + S_WORDS]
    late = 0
    first = now + wait
    for sequence in range(M[f + UNA], M[f + NXT]):
        if bit(M, out, sequence):
            if M[times + sequence] + wait <= now:
                _lose(M, f, sequence)
                late += 1
            elif M[times + sequence] + wait < first:
                first = M[times + sequence] + wait
    if late == 0 and M[f + OUT] == 0 and M[f + CREDIT] == 0:
        if M[f + HEARD_AT] + wait <= now:
            late = 1
        else:
            first = M[f + HEARD_AT] + wait
    if late:
        M[f + S_TIMEOUTS] += 1
        M[f + CREDIT] += late
        M[f + TIMED] = -1
        if M[f + BACKOFF] < MOST_BACKOFF:
            M[f + BACKOFF] += 1
    M[f + S_TIMER] = first


@njit
def _answer(M, k, r, kind, ce):
    """Return the answer to an arrival, with a pull if more is to be sent than has been requested."""
    asked = M[r + R_PULLED] + M[r + R_PULLS]
    answer = reply(kind, ce, M[r + R_PULLED] & MASK_SEQUENCE, 0, 1)
    if M[r + R_DONE] == 0 and M[k + K_INITIAL] + asked < M[r + R_PACKETS] + M[r + CUT]:
        answer = with_pulls(answer, 1)
    return answer


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Place the packet, acknowledge it, request one more."""
    bits = M[r + R_BITS]
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
        if M[r + R_GOT] == M[r + R_BYTES]:
            M[r + R_DONE] = 1
            M[r + R_PULLS] = 0
    return _answer(M, k, r, ACK, ce)


@njit
def on_trimmed(M, k, r, sequence, now):
    """Report the missing packet of a header, and request one more."""
    if bit(M, M[r + R_BITS], sequence):
        return _answer(M, k, r, ACK, 0)
    M[r + CUT] += 1
    return _answer(M, k, r, NACK, 0)


class Ndp(Transport):
    """NDP (Handley et al., SIGCOMM 2017): trimmed packets and pulling receivers; over UDP. It needs spraying, and
    `switch.trim_threshold`, which is eight full packets in the paper."""

    wants_trimming = True
    needs_drops = True

    forgets = True
    kind: Literal["ndp"]
    initial_window: Window | None = None
    """Packets sent before the first pull; by default one more than the unloaded bandwidth-delay product of the longest
    path (ours). htsim: 15 [code]."""
    min_rto: PositiveTime = Ps(1_000_000_000)
    """Smallest time-out, for packets without any report; at least three unloaded round trips. Ours."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""
    below_control: Flag = True
    """Data goes one queue below its usual one: headers and control packets go first. Ours."""

    @model_validator(mode="after")
    def _check_order(self) -> Ndp:
        check_timeouts(self.min_rto, self.max_rto)
        return self

    wire = "udp"

    def classes_from(self, priority: int) -> range:
        return range(priority + self.below_control, priority + self.below_control + 1)

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = BITMAPS
    receiver_bitmaps = 1
    fresh_word = NXT
    probe_word = 0
    pulls = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_trimmed = staticmethod(on_trimmed)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: packets are never dropped selectively; marks are ignored."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the first window (packets), smallest and largest time-out (ps), and 1 if data goes below control."""
        window = settings["initial_window"] or packets_of(context, UDP_OVERHEAD) + 1
        min_rto = max(settings["min_rto"], 3 * context.base_rtt)
        return [window, min_rto, max(settings["max_rto"], min_rto), int(settings["below_control"])]
