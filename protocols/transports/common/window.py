"""The window machinery of reliable transports keeps scoreboard, retransmission queue, timer and congestion window, and
acknowledges data; `recovery` detects losses.

Everything is counted in packets. Sources and choices:

* the receiver acknowledges every packet, with the cumulative point and the packet that caused the acknowledgement (the
  first SACK block of RFC 2018 reduced to its newest packet), unless it delays acknowledgements (`delayed_acks`);
* losses are detected and retransmitted as in `recovery`; packets are sent while fewer than the window are in flight
  (the "pipe" of RFC 6675);
* at most one reaction per window to losses and marks together (RFC 3168 section 6.1.2, RFC 8257 section 3.5), and no
  growth until that window has been acknowledged. A time-out counts as the reaction of its window (in RFC 3168,
  retransmissions could not be marked at all), but starts a new slow start at once;
* retransmission timer, RTT estimate and back-off as in RFC 6298, with one timed packet per round trip, never a
  retransmitted one (Karn). The minimum is a parameter, and also replaces the first second of RFC 6298, since a
  connection in a data centre has been measured before (our choice). The timer is off while nothing is in flight, for
  example while packets of a higher class keep the NIC busy. Back-off ends with a measurement and, after the first one,
  with the next progress: the header carries timestamps, so every acknowledgement of progress is a measurement (our
  choice);
* the window starts at 10 packets (RFC 6928) and grows as in RFC 5681 when the cumulative point moves (one packet per
  acknowledged packet below the threshold, one per window above), and only while the window limits the sender (RFC
  7661's concern; the rule is that of Linux: below the threshold while at least half of the window is in flight, above
  it while all is).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import ACK, BLOCKED
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.protocols.transports.base import ONE, bit, clear_bit, fixed_mul, forget_bits, reply, set_bit
from gradwire.protocols.transports.common.persistent_state import PersistentState


class WindowFlow(Sender):
    """The sender of a transport with a window."""

    una = Word("first packet that cumulative acknowledgements do not cover")
    nxt = Word("next new packet")
    cwnd = Word("congestion window", "packets << 16")
    ssthresh = Word("slow start threshold", "packets << 16")
    in_flight = Word("packets in flight by the sender's estimate (the pipe of RFC 6675)", "packets")
    lost_packets = Word("packets declared lost and not retransmitted yet", "packets")
    first_lost = Word("no packet below is in the bitmap `lost`")
    highest = Word("highest acknowledged packet, -1 = none")
    scanned = Word("every unacknowledged packet below has been declared lost")
    recover = Word("the recovery ends when every packet below is acknowledged (RFC 6582)")
    timed = Word("packet whose round trip is measured, -1 = none")
    timed_at = Word("send time of the timed packet", "ps")
    srtt = Word("smoothed round trip, 0 = none measured", "ps")
    rttvar = Word("mean deviation of the round trips", "ps")
    backoff = Word("consecutive time-outs: each doubles the time-out")
    reduction_end = Word("no further reduction until every packet below is acknowledged")
    alpha = Word("DCTCP: estimated share of marked packets", "20-bit fraction")
    acked = Word("DCTCP: packets acknowledged in this observation window", "packets")
    marked = Word("DCTCP: packets acknowledged with a mark in this observation window", "packets")
    observation_end = Word("DCTCP: the observation window ends when every packet below is acknowledged")
    loss_state = Word("OPEN, URGENT, or after a time-out 1 + the first packet that was unacknowledged then")
    rescued = Word("`recover` of the last recovery that retransmitted the highest packet as a last resort", at=26)
    prr_flight = Word("PRR: packets in flight when the reduction began, 0 = not in progress", "packets")
    prr_delivered = Word("PRR: packets delivered since the reduction began", "packets")
    prr_sent_before = Word("PRR: packets sent before the reduction began", "packets")
    acknowledged = Bitmap(0, "acknowledged packets")
    lost = Bitmap(1, "packets declared lost and not retransmitted yet")
    retransmitted = Bitmap(2, "packets sent more than once")


class WindowParameters(Parameters):
    """The parameters of the window machinery."""

    initial_window = Word("initial window", "packets")
    min_rto = Word("smallest retransmission time-out", "ps")
    max_rto = Word("largest retransmission time-out", "ps")
    prr = Word("1: proportional rate reduction")
    ack_delay = Word("longest delay of an acknowledgement, 0 = none", "ps")
    gain = Word("DCTCP: weight of the newest observation window in alpha", "20-bit fraction")


class WindowReceiver(Receiver):
    """The receiver of a transport with a window."""

    cumulative = Word("first packet that has not arrived")
    has_unacknowledged = Word("1: the last packet in order waits for its acknowledgement")
    waiting_mark = Word("1: the packet that waits for its acknowledgement arrived marked")
    next_above = Word("1 + highest packet that has arrived")
    arrived_packets = Bitmap(0, "packets that have arrived")


SHIFT = 16  # windows are packets << SHIFT

# While a connection has nothing in flight, no packet number is ahead of those to come. Nor do the counts of a recovery
# matter, which ends with the next acknowledgement.
SENDER_AT_REST = PersistentState(
    idle=(
        WindowFlow.una,
        WindowFlow.nxt,
        WindowFlow.first_lost,
        WindowFlow.highest,
        WindowFlow.scanned,
        WindowFlow.recover,
        WindowFlow.timed_at,
        WindowFlow.reduction_end,
        WindowFlow.rescued,
        WindowFlow.prr_delivered,
        WindowFlow.prr_sent_before,
    )
)

MIN_WINDOW = 2 << SHIFT
MAX_WINDOW = 1 << (22 + SHIFT)
OPEN = 0
URGENT = -1  # fast retransmit: one lost packet may be sent whatever is in flight


@njit
def note_lost(flow: WindowFlow, sequence: int) -> None:
    """Declare a packet lost and queue its retransmission."""
    set_bit(flow.lost, sequence)
    if flow.lost_packets == 0 or sequence < flow.first_lost:
        flow.first_lost = sequence
    flow.lost_packets += 1


@njit
def next_lost(flow: WindowFlow) -> int:
    """Take the first packet off the retransmission queue, which must not be empty."""
    lost = flow.lost
    sequence = flow.first_lost
    while bit(lost, sequence) == 0:
        sequence += 1
    clear_bit(lost, sequence)
    flow.lost_packets -= 1
    flow.first_lost = sequence + 1
    return sequence


@njit
def start(params: WindowParameters, flow: WindowFlow, now: int) -> None:
    """Initialise a new flow: initial window, slow start without a threshold."""
    flow.cwnd = params.initial_window << SHIFT
    flow.ssthresh = MAX_WINDOW
    flow.highest = -1
    flow.timed = -1


@njit
def timeout(params: WindowParameters, flow: WindowFlow) -> int:
    """Return the retransmission time-out in picoseconds (RFC 6298)."""
    rto = flow.srtt + 4 * flow.rttvar
    rto = max(rto, params.min_rto) << flow.backoff
    return min(rto, params.max_rto)


@njit
def observe(params: WindowParameters, flow: WindowFlow) -> None:
    """Move DCTCP's alpha towards the share of marked packets, once per window of data (RFC 8257, section 3.3).

    A window ends with the acknowledgement of its last packet, as in Linux (`dctcp_update_alpha`); the RFC waits for the
    first one beyond it.
    """
    if flow.una >= flow.observation_end and flow.acked > 0:
        share = flow.marked * ONE // flow.acked
        flow.alpha += fixed_mul(share - flow.alpha, params.gain)
        flow.acked = 0
        flow.marked = 0
        flow.observation_end = flow.nxt


@njit
def pull(params: WindowParameters, flow: WindowFlow, now: int) -> int:
    """Return the next retransmission, else the next new packet, while fewer than the window are in flight."""
    if flow.in_flight >= flow.cwnd >> SHIFT and (flow.loss_state != URGENT or flow.lost_packets == 0):
        return BLOCKED
    if flow.lost_packets > 0:
        sequence = next_lost(flow)
        set_bit(flow.retransmitted, sequence)
        if flow.loss_state == URGENT:
            flow.loss_state = OPEN
    elif flow.nxt < flow.packets:
        sequence = flow.nxt
        flow.nxt = sequence + 1
        if flow.timed < 0:
            flow.timed = sequence
            flow.timed_at = now
    else:
        return BLOCKED
    flow.in_flight += 1
    if flow.timer == 0:
        flow.timer = now + timeout(params, flow)
    return sequence


@njit
def _settle(flow: WindowFlow, sequence: int) -> None:
    """Record the first acknowledgement of a packet."""
    acknowledged = flow.acknowledged
    lost = flow.lost
    set_bit(acknowledged, sequence)
    if flow.lost_packets > 0 and bit(lost, sequence):
        clear_bit(lost, sequence)
        flow.lost_packets -= 1
    else:
        flow.in_flight -= 1


@njit
def acknowledge(params: WindowParameters, flow: WindowFlow, sequence: int, cumulative: int, now: int) -> int:
    """Update the scoreboard with an acknowledgement; return the number of newly acknowledged packets."""
    una = flow.una
    acknowledged = flow.acknowledged
    newly = 0
    if sequence >= una and bit(acknowledged, sequence) == 0:
        _settle(flow, sequence)
        newly = 1
        if sequence > flow.highest:
            flow.highest = sequence
    if flow.timed >= 0 and (sequence == flow.timed or cumulative > flow.timed):
        sample(flow, max(now - flow.timed_at, 1))  # sockets may send a little ahead of their schedule
    if una < cumulative <= flow.packets:  # answers on sockets may be invalid
        while una < cumulative:
            if bit(acknowledged, una) == 0:
                _settle(flow, una)
                newly += 1
            una += 1
        flow.una = cumulative
        if flow.srtt > 0:
            flow.backoff = 0
        if cumulative == flow.packets and not flow.stream:
            flow.is_done = 1
        if cumulative == flow.nxt:
            flow.timer = 0
        else:
            flow.timer = now + timeout(params, flow)
    return newly


@njit
def sample(flow: WindowFlow, rtt: int) -> None:
    """Update the estimate with a measured round trip (RFC 6298 section 2) and end the back-off."""
    flow.timed = -1
    flow.backoff = 0
    if flow.srtt == 0:
        flow.srtt = rtt
        flow.rttvar = rtt >> 1
    else:
        error = rtt - flow.srtt
        flow.rttvar += (abs(error) - flow.rttvar) >> 2
        flow.srtt += error >> 3


@njit
def reduce(flow: WindowFlow, window: int) -> None:
    """Reduce the window, with no further reaction until the packets in flight have been acknowledged."""
    flow.ssthresh = max(window, MIN_WINDOW)
    flow.cwnd = flow.ssthresh
    flow.reduction_end = flow.nxt
    if flow.loss_state > 0:
        flow.loss_state = OPEN


@njit
def grow(flow: WindowFlow, una: int, newly: int) -> None:
    """Grow the window by slow start or congestion avoidance. It does not grow in fast recovery, after a reduction, or
    if the window is not the limit. `una`: the first unacknowledged packet before this acknowledgement."""
    if flow.loss_state <= 0 and (una < flow.recover or una < flow.reduction_end):
        return
    window = flow.cwnd
    used = (flow.in_flight + newly) << SHIFT
    if window < flow.ssthresh:
        if window <= 2 * used:
            flow.cwnd = min(window + (newly << SHIFT), MAX_WINDOW)
    elif used + (1 << SHIFT) > window:
        flow.cwnd = min(window + (newly << (2 * SHIFT)) // window, MAX_WINDOW)


@njit
def on_timer(params: WindowParameters, flow: WindowFlow, now: int) -> None:
    """Handle a time-out: all packets in flight count as lost; restart with one packet (RFC 5681, RFC 6298 section
    5)."""
    flow.timeouts += 1
    acknowledged = flow.acknowledged
    lost = flow.lost
    una = flow.una
    sent = flow.nxt
    if flow.prr_flight:
        flow.cwnd = flow.ssthresh  # the target of the reduction in progress
    if flow.loss_state != una + 1:
        flow.ssthresh = max(min((sent - una) << SHIFT, flow.cwnd) >> 1, MIN_WINDOW)
    count = 0
    for sequence in range(una, sent):
        if bit(acknowledged, sequence) == 0:
            set_bit(lost, sequence)
            count += 1
    flow.lost_packets = count
    flow.first_lost = una
    flow.in_flight = 0
    flow.cwnd = 1 << SHIFT
    flow.recover = sent
    flow.rescued = sent
    flow.reduction_end = sent
    flow.prr_flight = 0
    flow.loss_state = una + 1
    flow.timed = -1
    if flow.backoff < 12:
        flow.backoff += 1


@njit
def resume(params: WindowParameters, flow: WindowFlow, now: int) -> None:
    """Restart a stream that has more to send after all its packets were acknowledged. After a silence longer than the
    time-out, the window is halved for every time-out that has passed, down to the initial window, and slow start leads
    back to three quarters of it (RFC 5681 section 4.1 and RFC 2861, as in Linux)."""
    reduce_after_idle(params, flow, now, timeout(params, flow))


@njit
def reduce_after_idle(params: WindowParameters, flow: WindowFlow, now: int, patience: int) -> None:
    """Reduce the window after a silence, with a time-out of `patience`."""
    silence = now - flow.last_sent_at
    if silence <= patience:
        return
    window = flow.cwnd
    flow.ssthresh = max(flow.ssthresh, 3 * window >> 2)
    least = min(params.initial_window << SHIFT, window)
    while silence > patience and window > least:
        window >>= 1
        silence -= patience
    flow.cwnd = max(window, least)


@njit
def forget(params: WindowParameters, flow: WindowFlow, packets: int) -> None:
    """Renumber packets without the first `packets` of a stream: bitmaps and numbers move down. `packets` is a multiple
    of 32 and below the number of acknowledged packets."""
    words = flow.bitmap_words
    for bitmap in range(3):
        forget_bits(flow.bitmaps, bitmap * words, words, packets >> 5)
    flow.una -= packets
    flow.nxt -= packets
    flow.first_lost -= packets
    flow.highest -= packets
    flow.scanned -= packets
    flow.recover -= packets
    flow.rescued -= packets
    flow.reduction_end -= packets
    if flow.timed >= 0:
        flow.timed -= packets
    if flow.loss_state > 0:
        flow.loss_state = max(flow.loss_state - packets, 1)  # 1 stands for no remaining packet


@njit
def forget_received(params: WindowParameters, receiver: WindowReceiver, packets: int) -> None:
    """Renumber packets at the receiver, below the number that arrived without a gap."""
    forget_bits(receiver.bitmaps, 0, receiver.bitmap_words, packets >> 5)
    receiver.cumulative -= packets


@njit
def on_data(params: WindowParameters, receiver: WindowReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, move the cumulative point, and acknowledge; the mark is echoed."""
    arrived = receiver.arrived_packets
    if bit(arrived, sequence) == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
    cumulative = receiver.cumulative
    if sequence == cumulative:
        packets = receiver.packets
        cumulative += 1
        while cumulative < packets and bit(arrived, cumulative):
            cumulative += 1
        receiver.cumulative = cumulative
        if receiver.received_bytes == receiver.nbytes:
            receiver.is_done = 1
    return reply(ACK, ce, cumulative, 0, 1)


@njit
def on_probe(params: WindowParameters, receiver: WindowReceiver, argument: int, now: int) -> int:
    """Return 0: senders with a window send no probes."""
    return 0
