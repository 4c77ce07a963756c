"""Declares the Linux TCP sender's memory records and parameters, stores send times, and rounds timers to ticks.

Scoreboard and windows are those of `window`. The time at which each packet was last sent, one word per packet, is laid
out like 32 bitmaps, behind the three of the scoreboard.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.protocols.transports.common.cubic_curve import CubicFlow, CubicParameters


class LinuxFlow(CubicFlow):
    """The sender of Linux TCP."""

    rack_sent_at = Word("RACK: send time of the delivered packet that was sent last", "ps", at=8)
    rack_sequence = Word("RACK: number of that packet, which orders equal send times", at=10)
    rack_rtt = Word("RACK: round trip of the last delivered packet", "ps")
    min_rtt = Word("smallest round trip, 0 = none measured", "ps", at=15)
    timer_purpose = Word("purpose of the timer: TIME_OUT, REORDERING or TAIL", at=25)
    timeouts_in_a_row = Word("time-outs since the last progress")
    prior_window = Word("window before the last reduction", "packets << 16")
    prr_delivered = Word("PRR: packets delivered since the reduction began", "packets")
    prr_sent = Word("PRR: packets sent since the reduction began", "packets")
    tail_probe = Word("tail loss probe in flight: 2 * (next new packet), + 1 for a retransmission; 0 = none")
    undo_marker = Word("1 + first packet in flight at the reduction, 0 = it cannot be undone")
    undo_retransmissions = Word(
        "retransmissions since the reduction not known to be needless, -1 = there were none", "packets"
    )
    prior_ssthresh = Word("ssthresh before the last reduction, 0 = marks forbid undoing it", "packets << 16")
    send_now = Word("exception to the window: NOTHING, PROBE_DUE or NEW_FIRST")
    frto = Word("1 while the last time-out may have been spurious")
    rtt_deviation = Word("mean deviation of the round trips, as in the kernel", "ps << 2")
    max_deviation = Word("largest deviation in this round trip", "ps")
    rtt_round_end = Word("RTT estimate: the round trip ends when more than this is acknowledged")
    round_end = Word("slow start: the round ends when this is acknowledged")
    round_start = Word("slow start: start of the round", "ps")
    train_ack_at = Word("HyStart: time of the last acknowledgement in the train", "ps")
    round_min_rtt = Word("slow start: smallest round trip in this round, 0 = none yet", "ps")
    round_samples = Word("slow start: round trips measured in this round")
    previous_min_rtt = Word("slow start: smallest round trip in the round before, 0 = none", "ps")
    css_baseline = Word("conservative slow start: smallest round trip when it began, 0 = not in progress", "ps")
    css_rounds = Word("conservative slow start: rounds so far")
    slow_start_ended = Word("1 once HyStart has ended slow start")
    saw_reordering = Word("RACK: 1 once a packet that was sent once has arrived after later ones")
    reordering_steps = Word("RACK: reordering window in quarters of the smallest round trip, less one")
    reordering_persist = Word("RACK: recoveries until the reordering window is reset")
    reordering_step_end = Word("RACK: the reordering window does not grow until this is acknowledged")
    nic_backlog = Word("memory of the packets queued at the NIC", "bytes")
    nic_limit = Word("limit of `nic_backlog`, at least two full packets", "bytes")


class LinuxParameters(CubicParameters):
    """The parameters of Linux TCP."""

    control = Word("congestion control: RENO, CUBIC or DCTCP")
    rack = Word("1: losses are detected by time (RACK); 0: by duplicates")
    tail_probes = Word("1: tail loss probes")
    frto = Word("1: F-RTO detects spurious time-outs")
    slow_start = Word("STANDARD, HYSTART or HYSTART_PLUS")
    tick = Word("length of a tick of the timers, 0 = exact to the picosecond", "ps")
    timer_slack = Word("added to the waits of RACK and tail loss probes", "ps")
    pacing_bytes = Word("bytes on the wire of a full packet with pacing, 0 = no pacing", "bytes")
    quick_acks = Word("packets at the start of a connection that are acknowledged without delay", "packets")
    ack_train = Word("HyStart: allowance for bursts, full packets", "packets")
    handshake_rtt = Word("round trip of a connection's handshake, 0 = unknown", "ps")
    lone_packet_delay = Word(
        "added to the wait of a tail loss probe with one packet in flight: its acknowledgement may be delayed", "ps"
    )
    acks_last = Word("1: the last packet of a message is acknowledged at once")
    queue_overhead = Word(
        "memory of a packet beyond its bytes on the wire, 0 = packets do not queue at the NIC", "bytes"
    )
    payload = Word("payload of a full packet", "bytes")


SCOREBOARD = 3  # bitmaps of the window machinery; behind them the send times, one word per packet
BITMAPS = SCOREBOARD + 32

OPEN, DISORDER, CWR, RECOVERY, LOSS = 0, 1, 2, 3, 4
"""Values of `LinuxFlow.loss_state`, as in the kernel."""
TIME_OUT, REORDERING, TAIL = 0, 1, 2
"""Values of `LinuxFlow.timer_purpose`."""
NOTHING, PROBE_DUE, NEW_FIRST = 0, 1, 2
"""Values of `LinuxFlow.send_now`."""
RENO, CUBIC, DCTCP = 0, 1, 2
"""Values of `LinuxParameters.control`."""
STANDARD, HYSTART, HYSTART_PLUS = 0, 1, 2
"""Values of `LinuxParameters.slow_start`."""


@njit
def sent_at(flow: LinuxFlow, sequence: int) -> int:
    """Return the time at which a packet was last sent."""
    return flow.bitmaps[(SCOREBOARD + (sequence & 31)) * flow.bitmap_words + (sequence >> 5)]


@njit
def set_sent_at(flow: LinuxFlow, sequence: int, now: int) -> None:
    """Record the time at which a packet is sent."""
    flow.bitmaps[(SCOREBOARD + (sequence & 31)) * flow.bitmap_words + (sequence >> 5)] = now


@njit
def due(params: LinuxParameters, now: int, wait: int) -> int:
    """Return the expiry time of a timer set now for `wait` ps. With ticks, it is the start of the tick after the one in
    which the timer is due; from 63 ticks on every eighth tick, from eight times as many on every 64th, and so on
    [kernel/time/timer.c: `calc_index`]."""
    tick = params.tick
    if tick == 0:
        return now + wait
    ticks = (wait + tick - 1) // tick
    shift = 0
    while ticks >= 63 << shift:
        shift += 3
    return (((now // tick + ticks + (1 << shift)) >> shift) << shift) * tick


@njit
def smoothed(flow: LinuxFlow, rtt: int) -> None:
    """Update the smoothed round trip with a sample (RFC 6298)."""
    flow.srtt = rtt if flow.srtt == 0 else max(flow.srtt + ((rtt - flow.srtt) >> 3), 1)
