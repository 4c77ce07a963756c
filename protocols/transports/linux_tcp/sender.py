"""Implements the sender of a current Linux kernel's TCP (NewReno, CUBIC, DCTCP) with RACK, tail loss probes, PRR and
F-RTO.

States and transitions are those of Linux [net/ipv4/tcp_input.c]: see `states`. Sources, rule by rule, each of them
optional:

* losses by time, `loss_detection` (RFC 8985 section 6);
* tail loss probes (RFC 8985 section 7): two round trips after the last packet, a new packet or the last one again;
* while the window falls, sending continues in proportion to arrivals (RFC 9937, the successor of RFC 6937): below the
  target as in slow start when an acknowledgement makes progress and reports no new loss, else as much as has arrived.
  For marks as well;
* F-RTO (RFC 5682, with selective acknowledgements): after a time-out new packets go first, and when a packet that was
  not retransmitted turns out to have arrived, the time-out was spurious, and window and threshold are restored. They
  are also restored when all retransmissions were needless (RFC 2883, RFC 3708): an acknowledgement reports a packet
  that arrived twice;
* growth and reductions: `growth`. Pacing: twice the window per round trip in slow start up to half of its threshold,
  else 1.2 times, from the eleventh packet on (`small_queues`);
* packets at the NIC: `small_queues`.

Left out: undoing by timestamps (RFC 4015), whose clock of a millisecond is useless at shorter round trips; reneging.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import BLOCKED
from gradwire.protocols.transports.base import ONE, bit, forget_bits, set_bit
from gradwire.protocols.transports.common.cubic_curve import shift_epoch
from gradwire.protocols.transports.common.window import SHIFT, next_lost, reduce_after_idle
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.protocols.transports.linux_tcp.growth import count_marks, grow, threshold, timed_out, watch_slow_start
from gradwire.protocols.transports.linux_tcp.layout import (
    CUBIC,
    CWR,
    DCTCP,
    DISORDER,
    LOSS,
    NEW_FIRST,
    NOTHING,
    OPEN,
    PROBE_DUE,
    RECOVERY,
    REORDERING,
    SCOREBOARD,
    TAIL,
    TIME_OUT,
    LinuxFlow,
    LinuxParameters,
    sent_at,
    set_sent_at,
)
from gradwire.protocols.transports.linux_tcp.loss_detection import (
    ADVANCED,
    NEEDLESS,
    SELECTED,
    arm,
    declare_lost,
    find_by_time,
    measure,
    rearm_rto,
    rto,
    schedule_probe,
    update_scoreboard,
)
from gradwire.protocols.transports.linux_tcp.small_queues import has_queued, is_throttled, pace, update_limit
from gradwire.protocols.transports.linux_tcp.states import (
    begin_undo,
    enter_recovery,
    on_duplicate,
    probe_answered,
    reduce_proportionally,
    update_state,
)

UNPACED = 10  # packets at the start without pacing


@njit
def start(params: LinuxParameters, flow: LinuxFlow, now: int) -> None:
    """Begin a connection; its handshake has measured a round trip if `params.handshake_rtt` is set."""
    start_window(params, flow, now)
    flow.rack_sequence = -1
    if params.control == DCTCP:
        flow.alpha = ONE
    if params.handshake_rtt:
        flow.min_rtt = params.handshake_rtt
        measure(params, flow, params.handshake_rtt)
    update_limit(params, flow)


@njit
def on_control(
    params: LinuxParameters, flow: LinuxFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, losses, states, timers, the window."""
    first_sent_at = sent_at(flow, flow.una)
    report, newly, rtt = update_scoreboard(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    advanced = report & ADVANCED
    if advanced:
        flow.timeouts_in_a_row = 0
    flow.send_now = NOTHING
    if report & NEEDLESS:
        on_duplicate(flow, sequence)
    count_marks(params, flow, newly, echo)
    watch_slow_start(params, flow, rtt, now, params.ack_train)
    if flow.tail_probe:
        probe_answered(params, flow, report, argument, sequence)
    lost_before = flow.lost_packets
    timer_set = False
    if report & (SELECTED | NEEDLESS) or echo or advanced == 0 or flow.loss_state != OPEN:
        timer_set = update_state(params, flow, report, echo, now)
    # packets sent before the first one (last) postpone the time-out, packets sent after it do not
    if not timer_set and (advanced or rtt > now - first_sent_at) and schedule_probe(params, flow, now, 1) == 0:
        rearm_rto(params, flow, now)
    if flow.loss_state == CWR or flow.loss_state == RECOVERY:
        reduce_proportionally(flow, newly, flow.lost_packets - lost_before, advanced)
    elif advanced:
        grow(params, flow, newly, now)
    if params.pacing_bytes and flow.sent >= UNPACED:
        _set_gap(params, flow)
    update_limit(params, flow)


@njit
def _set_gap(params: LinuxParameters, flow: LinuxFlow) -> None:
    """Set the packet spacing by the pace."""
    hundredths, packets = pace(flow)
    flow.gap = (flow.srtt * 100 << 10) // (hundredths * packets * params.pacing_bytes) << 6


@njit
def on_timer(params: LinuxParameters, flow: LinuxFlow, now: int) -> None:
    """Handle the expiry of the timer by its purpose."""
    purpose = flow.timer_purpose
    if purpose == REORDERING:
        lost_before = flow.lost_packets
        _, _ = find_by_time(flow, now)
        if flow.lost_packets > lost_before:
            if flow.loss_state != RECOVERY:
                enter_recovery(params, flow, 0)
                reduce_proportionally(flow, 1, flow.lost_packets - lost_before, 0)
        rearm_rto(params, flow, now)
    elif purpose == TAIL:
        if flow.tail_probe == 0:
            flow.send_now = PROBE_DUE
        rearm_rto(params, flow, now)
    else:
        _time_out(params, flow, now)


@njit
def _time_out(params: LinuxParameters, flow: LinuxFlow, now: int) -> None:
    """Handle a time-out (RFC 6298 section 5, RFC 8985 section 8). Packets sent less than a round trip ago are not lost
    yet."""
    flow.timeouts += 1
    una = flow.una
    acknowledged = flow.acknowledged
    lost = flow.lost
    for sequence in range(una, flow.nxt):
        if bit(acknowledged, sequence) == 0 and bit(lost, sequence) == 0:
            recent = params.rack and sequence > una and sent_at(flow, sequence) + flow.rack_rtt > now
            if not recent:
                declare_lost(flow, sequence)
    is_first = flow.loss_state < RECOVERY
    if flow.loss_state <= DISORDER or una >= flow.recover or (flow.loss_state == LOSS and flow.timeouts_in_a_row == 0):
        flow.prior_ssthresh = flow.ssthresh
        flow.prior_window = flow.cwnd
        flow.ssthresh = threshold(params, flow, True)
        begin_undo(flow)
    timed_out(params, flow)
    flow.cwnd = (flow.in_flight + 1) << SHIFT
    flow.loss_state = LOSS
    flow.recover = flow.nxt
    flow.tail_probe = 0
    flow.frto = 1 if params.frto and (is_first or flow.timeouts_in_a_row > 0) else 0
    flow.timeouts_in_a_row += 1
    flow.send_now = NOTHING
    if flow.backoff < 12:
        flow.backoff += 1
    arm(params, flow, TIME_OUT, now, rto(params, flow))


@njit
def _retransmit(params: LinuxParameters, flow: LinuxFlow, sequence: int, now: int) -> None:
    """Record the retransmission of a packet."""
    set_bit(flow.retransmitted, sequence)
    set_sent_at(flow, sequence, now)
    flow.undo_retransmissions = max(flow.undo_retransmissions, 0) + 1
    if sequence == flow.una and flow.timer_purpose != REORDERING:
        arm(params, flow, TIME_OUT, now, rto(params, flow))


@njit
def _send_new(params: LinuxParameters, flow: LinuxFlow, now: int) -> int:
    """Return the next new packet and record its transmission."""
    sequence = flow.nxt
    is_alone = sequence == flow.una
    flow.nxt = sequence + 1
    set_sent_at(flow, sequence, now)
    if is_alone or flow.timer_purpose == TAIL:
        flow.timer_purpose = TIME_OUT if is_alone else TAIL
        rearm_rto(params, flow, now)
    schedule_probe(params, flow, now, 0)
    flow.in_flight += 1
    return sequence


@njit
def _probe(params: LinuxParameters, flow: LinuxFlow, now: int) -> int:
    """Return a tail loss probe: a new packet if there is one, else the last one again (RFC 8985 section 7.3)."""
    flow.send_now = NOTHING
    if flow.nxt < flow.packets:
        sequence = _send_new(params, flow, now)
        flow.tail_probe = 2 * flow.nxt
    else:
        sequence = flow.nxt - 1
        flow.tail_probe = 2 * flow.nxt + 1
        if bit(flow.acknowledged, sequence) or has_queued(params, flow):
            flow.tail_probe = 0
            return BLOCKED
        _retransmit(params, flow, sequence, now)
    arm(params, flow, TIME_OUT, now, rto(params, flow))
    return sequence


@njit
def pull(params: LinuxParameters, flow: LinuxFlow, now: int) -> int:
    """Return a due probe, else a lost packet or a new one while fewer than the window are in flight."""
    if flow.send_now == PROBE_DUE:
        return _probe(params, flow, now)
    is_retransmission = flow.send_now != NEW_FIRST and flow.lost_packets > 0
    if is_throttled(params, flow, is_retransmission):
        return BLOCKED
    if flow.in_flight >= flow.cwnd >> SHIFT:
        return BLOCKED
    if flow.send_now == NEW_FIRST:
        if flow.nxt == flow.packets:
            return BLOCKED
    elif is_retransmission:
        sequence = next_lost(flow)
        flow.in_flight += 1
        flow.prr_sent += 1
        _retransmit(params, flow, sequence, now)
        return sequence
    if flow.nxt == flow.packets:
        return BLOCKED
    flow.prr_sent += 1
    return _send_new(params, flow, now)


@njit
def resume(params: LinuxParameters, flow: LinuxFlow, now: int) -> None:
    """Resume after a silence: reduce the window, and shift CUBIC's curve."""
    reduce_after_idle(params, flow, now, rto(params, flow))
    if params.control == CUBIC:
        shift_epoch(flow, now)


@njit
def forget(params: LinuxParameters, flow: LinuxFlow, packets: int) -> None:
    """Renumber packets without the first `packets` of a stream."""
    words = flow.bitmap_words
    for bitmap in range(SCOREBOARD + 32):
        forget_bits(flow.bitmaps, bitmap * words, words, packets >> 5)
    flow.una -= packets
    flow.nxt -= packets
    flow.first_lost = max(flow.first_lost - packets, 0)
    flow.highest -= packets
    flow.recover -= packets
    flow.rack_sequence -= packets
    if params.rack == 0:
        flow.rack_sent_at -= packets  # with duplicate counting: how far they have been counted
    if flow.tail_probe:
        flow.tail_probe -= 2 * packets
    if flow.undo_marker:
        flow.undo_marker = max(flow.undo_marker - packets, 1)
    if params.control == DCTCP:
        flow.observation_end -= packets
    flow.round_end -= packets
    flow.rtt_round_end -= packets
    flow.reordering_step_end -= packets
