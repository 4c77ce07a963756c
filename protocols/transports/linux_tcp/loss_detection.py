"""Detects losses for the Linux TCP sender by RACK, measures round trips, and sets its timers.

RACK (RFC 8985 section 6): a packet is lost when a packet sent later has arrived, and the newest round trip plus a
reordering window has passed. The window is zero in recovery, or once three packets above have arrived, unless
reordering has been seen; else a quarter of the smallest round trip, more after needless retransmissions, and at most
the smoothed one. A timer checks again for packets that may still arrive. Retransmissions are treated alike.

Our choice: an acknowledgement reports the packet that caused it, and no others above the cumulative point; the report
of a lost acknowledgement is recovered with the cumulative point only.
"""

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import bit, clear_bit, set_bit
from gradwire.protocols.transports.common.window import note_lost
from gradwire.protocols.transports.linux_tcp.layout import (
    CWR,
    OPEN,
    RECOVERY,
    REORDERING,
    TAIL,
    TIME_OUT,
    LinuxFlow,
    LinuxParameters,
    due,
    sent_at,
    smoothed,
)

DUPLICATES = 3
FULL = (1 << 32) - 1  # bitmap word: all 32 packets
FIRST_PROBE = 10**12  # ps: a tail loss probe before any round trip is known (RFC 8985 section 7.2)

ADVANCED, SELECTED, ORIGINAL, NEEDLESS = 1, 2, 4, 8
"""Flags of what an acknowledgement reports.

* ADVANCED: the cumulative point has moved;
* SELECTED: a packet above the cumulative point has arrived;
* ORIGINAL: a packet sent once, before the state began, has arrived;
* NEEDLESS: a packet has arrived twice.
"""


@njit
def rto(params: LinuxParameters, flow: LinuxFlow) -> int:
    """Return the retransmission time-out. With ticks it is the kernel's: at least `rto_min` above the round trip."""
    if params.tick:
        tick = params.tick
        wait = (flow.srtt + max(flow.rttvar, params.min_rto) + tick - 1) // tick * tick
    else:
        wait = max(flow.srtt + 4 * flow.rttvar, params.min_rto)
    return min(wait << flow.backoff, params.max_rto)


@njit
def arm(params: LinuxParameters, flow: LinuxFlow, purpose: int, now: int, wait: int) -> None:
    """Set the timer for one of its purposes."""
    flow.timer_purpose = purpose
    flow.timer = due(params, now, wait)


@njit
def rearm_rto(params: LinuxParameters, flow: LinuxFlow, now: int) -> None:
    """Restart the time-out; after another kind of timer, count from the send time of the first packet."""
    if flow.nxt == flow.una:
        flow.timer_purpose = TIME_OUT
        flow.timer = 0
        return
    wait = rto(params, flow)
    if flow.timer_purpose != TIME_OUT:
        wait = max(sent_at(flow, flow.una) + wait - now, 1)
    arm(params, flow, TIME_OUT, now, wait)


@njit
def schedule_probe(params: LinuxParameters, flow: LinuxFlow, now: int, progress: int) -> int:
    """Set the timer of a tail loss probe (RFC 8985 section 7.2) if one is allowed; return 1 if it was set. `progress`:
    the time-out restarts."""
    if params.tail_probes == 0 or flow.nxt == flow.una or (flow.loss_state != OPEN and flow.loss_state != CWR):
        return 0
    wait = FIRST_PROBE
    if flow.srtt:
        wait = 2 * flow.srtt
        wait += params.lone_packet_delay if flow.nxt - flow.una == 1 else params.timer_slack
    time_out = rto(params, flow)
    if progress == 0:
        time_out += sent_at(flow, flow.una) - now
    if time_out > 0:
        wait = min(wait, time_out)
    arm(params, flow, TAIL, now, wait)
    return 1


@njit
def measure(params: LinuxParameters, flow: LinuxFlow, rtt: int) -> None:
    """Update the estimate with a round trip (RFC 6298). With ticks, the deviation is computed as in the kernel:
    `tcp_rtt_estimator`, net/ipv4/tcp_input.c."""
    flow.backoff = 0
    if params.tick == 0:
        if flow.srtt == 0:
            flow.rttvar = rtt >> 1
        else:
            flow.rttvar += (abs(rtt - flow.srtt) - flow.rttvar) >> 2
        smoothed(flow, rtt)
        return
    if flow.srtt == 0:
        flow.rtt_deviation = rtt << 1
        flow.rttvar = max(flow.rtt_deviation, params.min_rto)
        flow.max_deviation = flow.rttvar
        flow.rtt_round_end = flow.nxt
        smoothed(flow, rtt)
        return
    error = rtt - flow.srtt
    smoothed(flow, rtt)
    change = abs(error) - (flow.rtt_deviation >> 2)
    if error < 0 and change > 0:
        change >>= 3
    flow.rtt_deviation += change
    if flow.rtt_deviation > flow.max_deviation:
        flow.max_deviation = flow.rtt_deviation
        flow.rttvar = max(flow.rttvar, flow.max_deviation)
    if flow.una > flow.rtt_round_end:
        if flow.max_deviation < flow.rttvar:
            flow.rttvar -= (flow.rttvar - flow.max_deviation) >> 2
        flow.rtt_round_end = flow.nxt
        flow.max_deviation = params.min_rto


@njit
def _arrived(params: LinuxParameters, flow: LinuxFlow, sequence: int, now: int) -> int:
    """Record the first acknowledgement of a packet; return ORIGINAL if it was sent once, before the state began."""
    acknowledged = flow.acknowledged
    lost = flow.lost
    is_retransmitted = bit(flow.retransmitted, sequence)
    set_bit(acknowledged, sequence)
    if bit(lost, sequence):
        clear_bit(lost, sequence)
        flow.lost_packets -= 1
    else:
        flow.in_flight -= 1
    if is_retransmitted == 0 and sequence < flow.highest:
        flow.saw_reordering = 1
    flow.highest = max(flow.highest, sequence)
    sent = sent_at(flow, sequence)
    rtt = max(now - sent, 1)
    if params.rack and (is_retransmitted == 0 or rtt >= flow.min_rtt):  # else it answers an earlier sending
        flow.rack_rtt = rtt
        if sent > flow.rack_sent_at or (sent == flow.rack_sent_at and sequence > flow.rack_sequence):
            flow.rack_sent_at = sent
            flow.rack_sequence = sequence
    return ORIGINAL if is_retransmitted == 0 and sequence < flow.recover else 0


@njit
def update_scoreboard(
    params: LinuxParameters, flow: LinuxFlow, sequence: int, cumulative: int, now: int
) -> tuple[int, int, int]:
    """Update the scoreboard with an acknowledgement. Return what it reports (ADVANCED and so on), the number of newly
    acknowledged packets, and the round trip of the last of them that was sent once, or 0."""
    una = flow.una
    acknowledged = flow.acknowledged
    retransmitted = flow.retransmitted
    report = 0
    newly = 0
    first = 0  # round trips of the first and the last newly acknowledged packet that was sent once
    last = 0
    if sequence >= cumulative and sequence >= una and bit(acknowledged, sequence) == 0:
        report |= SELECTED | _arrived(params, flow, sequence, now)
        newly = 1
        if bit(retransmitted, sequence) == 0:
            last = max(now - sent_at(flow, sequence), 1)
    elif sequence < una or bit(acknowledged, sequence):
        report |= NEEDLESS
    if cumulative > una:
        report |= ADVANCED
        none_retransmitted = True
        for packet in range(una, cumulative):
            once = bit(retransmitted, packet) == 0
            none_retransmitted = none_retransmitted and once
            if bit(acknowledged, packet) == 0:
                report |= _arrived(params, flow, packet, now)
                newly += 1
                if once:
                    rtt = max(now - sent_at(flow, packet), 1)
                    first = rtt if first == 0 else first
                    if report & SELECTED == 0:
                        last = rtt
        if not none_retransmitted:
            first = 0
        if first == 0 and report & SELECTED == 0:
            last = 0
            if params.tick:  # timestamps are in ticks
                tick = params.tick
                first = max(now // tick - sent_at(flow, una) // tick, 1) * tick
                last = first
            elif flow.srtt:
                flow.backoff = 0
        flow.una = cumulative
        if cumulative == flow.packets and not flow.stream:
            flow.is_done = 1
    if first or last:
        if last and (flow.min_rtt == 0 or last < flow.min_rtt):
            flow.min_rtt = last
        measure(params, flow, first if first else last)
    return report, newly, last


@njit
def grow_reordering_window(flow: LinuxFlow) -> None:
    """Grow the reordering window after a needless retransmission, once per round trip (RFC 8985, section 6.2)."""
    if flow.una >= flow.reordering_step_end:
        flow.reordering_steps += 1
        flow.reordering_step_end = flow.nxt
        flow.reordering_persist = 16


@njit
def end_recovery(flow: LinuxFlow) -> None:
    """End a recovery; after sixteen of them the reordering window is reset."""
    if flow.reordering_persist > 0:
        flow.reordering_persist -= 1
        if flow.reordering_persist == 0:
            flow.reordering_steps = 0


@njit
def _reordering_window(flow: LinuxFlow) -> int:
    """Return the reordering window in picoseconds."""
    if flow.saw_reordering == 0:
        arrived = flow.nxt - flow.una - flow.in_flight - flow.lost_packets
        if flow.loss_state >= RECOVERY or arrived >= DUPLICATES:
            return 0
    return min((flow.min_rtt >> 2) * (1 + flow.reordering_steps), flow.srtt)


@njit
def declare_lost(flow: LinuxFlow, sequence: int) -> None:
    """Declare a packet lost and queue its retransmission."""
    note_lost(flow, sequence)
    flow.in_flight -= 1


@njit
def find_by_time(flow: LinuxFlow, now: int) -> tuple[int, int]:
    """Declare packets lost that were sent before the last delivered one and whose time has passed. Return the time
    until the last of the others is due (0 = none), and True if a retransmission was lost."""
    una = flow.una
    acknowledged = flow.acknowledged
    lost = flow.lost
    retransmitted = flow.retransmitted
    patience = flow.rack_rtt + _reordering_window(flow)
    last = flow.rack_sent_at
    wait = 0
    lost_again = False
    sequence = una
    end = flow.nxt
    while sequence < end:
        if sequence & 31 == 0 and acknowledged[sequence >> 5] == FULL:
            sequence += 32
            continue
        if bit(acknowledged, sequence) == 0 and bit(lost, sequence) == 0:
            sent = sent_at(flow, sequence)
            if sent < last or (sent == last and sequence < flow.rack_sequence):
                remaining = sent + patience - now
                if remaining <= 0:
                    lost_again = lost_again or bit(retransmitted, sequence) != 0
                    declare_lost(flow, sequence)
                else:
                    wait = max(wait, remaining)
            elif bit(retransmitted, sequence) == 0:
                break  # later packets were sent later still
        sequence += 1
    return wait, lost_again


@njit
def watch_reordering(params: LinuxParameters, flow: LinuxFlow, now: int, wait: int) -> None:
    """Set the timer to check again when the remaining packets are due."""
    arm(params, flow, REORDERING, now, wait + params.timer_slack)
