"""The sender of a current kernel's TCP: NewReno, CUBIC and DCTCP over RACK, tail loss probes, PRR and F-RTO.

States and transitions are those of Linux [net/ipv4/tcp_input.c]: open, disorder (something has arrived out of order),
CWR (the window falls for a mark), recovery (for a loss), loss (after a time-out). Sources, rule by rule, each of them
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
from gradwire.jit.layout import BLOCKED, S_BITS, S_DONE, S_GAP, S_PACKETS, S_SENT, S_TIMEOUTS, S_WORDS
from gradwire.protocols.transports.base import ONE, bit, forget_bits, set_bit
from gradwire.protocols.transports.common.cubic_curve import shift_epoch
from gradwire.protocols.transports.common.lost_packets import LOST, LOST_AT, next_lost
from gradwire.protocols.transports.common.window import (
    ALPHA,
    BACKOFF,
    CWND,
    FLIGHT,
    HIGHEST,
    NXT,
    OBSERVED,
    RECOVER,
    SHIFT,
    SRTT,
    SSTHRESH,
    STATE,
    UNA,
    reduce_after_idle,
)
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.protocols.transports.linux_tcp.growth import count_marks, grow, threshold, timed_out, watch_slow_start
from gradwire.protocols.transports.linux_tcp.layout import (
    CUBIC,
    CWR,
    DCTCP,
    DISORDER,
    FRTO,
    K_ACK_TRAIN,
    K_CONTROL,
    K_FRTO,
    K_HANDSHAKE,
    K_PACING,
    K_RACK,
    LEAST_RTT,
    LOSS,
    NEW_FIRST,
    NOTHING,
    OPEN,
    PRIOR,
    PRIOR_THRESHOLD,
    PROBE,
    PROBE_DUE,
    RACK_AT,
    RACK_RTT,
    RACK_SEQUENCE,
    RECOVERY,
    REORDERING,
    ROUND,
    ROUND_RTT,
    SCOREBOARD,
    SEND_NOW,
    SENT,
    STEP_UNTIL,
    TAIL,
    TIME_OUT,
    TIMER,
    TRIES,
    UNDO,
    UNDO_AGAIN,
    extra_word,
    stamp_of,
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

UNPACED = 10  # initial packets without pacing


@njit
def start(M, k, f, now):
    """Begin a connection; its handshake has measured a round trip if K_HANDSHAKE is set."""
    start_window(M, k, f, now)
    M[f + RACK_SEQUENCE] = -1
    if M[k + K_CONTROL] == DCTCP:
        M[f + ALPHA] = ONE
    if M[k + K_HANDSHAKE]:
        M[f + LEAST_RTT] = M[k + K_HANDSHAKE]
        measure(M, k, f, M[k + K_HANDSHAKE])
    update_limit(M, k, f)


# --- acknowledgements -----------------------------------------------------------------------------------------------


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an acknowledgement: scoreboard, losses, states, timers, the window."""
    head = M[stamp_of(M, f, M[f + UNA])]
    told, newly, rtt = update_scoreboard(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    advanced = told & ADVANCED
    if advanced:
        M[f + TRIES] = 0
    M[f + SEND_NOW] = NOTHING
    if told & NEEDLESS:
        on_duplicate(M, f, sequence)
    count_marks(M, k, f, newly, echo)
    watch_slow_start(M, k, f, rtt, now, M[k + K_ACK_TRAIN])
    if M[f + PROBE]:
        probe_answered(M, k, f, told, argument, sequence)
    before = M[f + LOST]
    timed = False
    if told & (SELECTED | NEEDLESS) or echo or advanced == 0 or M[f + STATE] != OPEN:
        timed = update_state(M, k, f, told, echo, now)
    # packets sent before the first one (last) postpone the time-out, packets sent after it do not
    if not timed and (advanced or rtt > now - head) and schedule_probe(M, k, f, now, 1) == 0:
        rearm_rto(M, k, f, now)
    if M[f + STATE] == CWR or M[f + STATE] == RECOVERY:
        reduce_proportionally(M, f, newly, M[f + LOST] - before, advanced)
    elif advanced:
        grow(M, k, f, newly, now)
    if M[k + K_PACING] and M[f + S_SENT] >= UNPACED:
        _pace(M, k, f)
    update_limit(M, k, f)


@njit
def _pace(M, k, f):
    faster, packets = pace(M, f)
    M[f + S_GAP] = (M[f + SRTT] * 100 << 10) // (faster * packets * M[k + K_PACING]) << 6


# --- timers ---------------------------------------------------------------------------------------------------------


@njit
def on_timer(M, k, f, now):
    """Handle the expiry of the timer by its purpose."""
    what = M[f + TIMER]
    if what == REORDERING:
        before = M[f + LOST]
        _, _ = find_by_time(M, f, now)
        if M[f + LOST] > before:
            if M[f + STATE] != RECOVERY:
                enter_recovery(M, k, f, 0)
                reduce_proportionally(M, f, 1, M[f + LOST] - before, 0)
        rearm_rto(M, k, f, now)
    elif what == TAIL:
        if M[f + PROBE] == 0:
            M[f + SEND_NOW] = PROBE_DUE
        rearm_rto(M, k, f, now)
    else:
        _time_out(M, k, f, now)


@njit
def _time_out(M, k, f, now):
    """Handle a time-out (RFC 6298 section 5, RFC 8985 section 8). Packets sent less than a round trip ago are not lost
    yet."""
    M[f + S_TIMEOUTS] += 1
    una = M[f + UNA]
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    for sequence in range(una, M[f + NXT]):
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0:
            recent = M[k + K_RACK] and sequence > una and M[stamp_of(M, f, sequence)] + M[f + RACK_RTT] > now
            if not recent:
                declare_lost(M, f, sequence)
    fresh = M[f + STATE] < RECOVERY
    if M[f + STATE] <= DISORDER or una >= M[f + RECOVER] or (M[f + STATE] == LOSS and M[f + TRIES] == 0):
        M[f + PRIOR_THRESHOLD] = M[f + SSTHRESH]
        M[f + PRIOR] = M[f + CWND]
        M[f + SSTHRESH] = threshold(M, k, f, True)
        begin_undo(M, f)
    timed_out(M, k, f)
    M[f + CWND] = (M[f + FLIGHT] + 1) << SHIFT
    M[f + STATE] = LOSS
    M[f + RECOVER] = M[f + NXT]
    M[f + PROBE] = 0
    M[extra_word(M, f, FRTO)] = 1 if M[k + K_FRTO] and (fresh or M[f + TRIES] > 0) else 0
    M[f + TRIES] += 1
    M[f + SEND_NOW] = NOTHING
    if M[f + BACKOFF] < 12:
        M[f + BACKOFF] += 1
    arm(M, k, f, TIME_OUT, now, rto(M, k, f))


# --- packets --------------------------------------------------------------------------------------------------------


@njit
def _send_again(M, k, f, sequence, now):
    again = M[f + S_BITS] + 2 * M[f + S_WORDS]
    set_bit(M, again, sequence)
    M[stamp_of(M, f, sequence)] = now
    M[f + UNDO_AGAIN] = max(M[f + UNDO_AGAIN], 0) + 1
    if sequence == M[f + UNA] and M[f + TIMER] != REORDERING:
        arm(M, k, f, TIME_OUT, now, rto(M, k, f))


@njit
def _send_new(M, k, f, now):
    """Return the next new packet and record its transmission."""
    sequence = M[f + NXT]
    alone = sequence == M[f + UNA]
    M[f + NXT] = sequence + 1
    M[stamp_of(M, f, sequence)] = now
    if alone or M[f + TIMER] == TAIL:
        M[f + TIMER] = TIME_OUT if alone else TAIL
        rearm_rto(M, k, f, now)
    schedule_probe(M, k, f, now, 0)
    M[f + FLIGHT] += 1
    return sequence


@njit
def _probe(M, k, f, now):
    """Return a tail loss probe: a new packet if there is one, else the last one again (RFC 8985 section 7.3)."""
    M[f + SEND_NOW] = NOTHING
    if M[f + NXT] < M[f + S_PACKETS]:
        sequence = _send_new(M, k, f, now)
        M[f + PROBE] = 2 * M[f + NXT]
    else:
        sequence = M[f + NXT] - 1
        M[f + PROBE] = 2 * M[f + NXT] + 1
        if bit(M, M[f + S_BITS], sequence) or has_queued(M, k, f):
            M[f + PROBE] = 0
            return BLOCKED
        _send_again(M, k, f, sequence, now)
    arm(M, k, f, TIME_OUT, now, rto(M, k, f))
    return sequence


@njit
def pull(M, k, f, now):
    """Return a due probe; then, while fewer than the window are in flight, lost packets, then new ones."""
    if M[f + SEND_NOW] == PROBE_DUE:
        return _probe(M, k, f, now)
    again = M[f + SEND_NOW] != NEW_FIRST and M[f + LOST] > 0
    if is_throttled(M, k, f, again):
        return BLOCKED
    if M[f + FLIGHT] >= M[f + CWND] >> SHIFT:
        return BLOCKED
    if M[f + SEND_NOW] == NEW_FIRST:
        if M[f + NXT] == M[f + S_PACKETS]:
            return BLOCKED
    elif again:
        sequence = next_lost(M, f)
        M[f + FLIGHT] += 1
        M[f + SENT] += 1
        _send_again(M, k, f, sequence, now)
        return sequence
    if M[f + NXT] == M[f + S_PACKETS]:
        return BLOCKED
    M[f + SENT] += 1
    return _send_new(M, k, f, now)


# --- streams --------------------------------------------------------------------------------------------------------


@njit
def resume(M, k, f, now):
    reduce_after_idle(M, k, f, now, rto(M, k, f))
    if M[k + K_CONTROL] == CUBIC:
        shift_epoch(M, f, now)


@njit
def forget(M, k, f, packets):
    """Renumber packets without the first `packets` of a stream."""
    words = M[f + S_WORDS]
    for bitmap in range(SCOREBOARD + 32):
        forget_bits(M, M[f + S_BITS] + bitmap * words, words, packets >> 5)
    M[f + UNA] -= packets
    M[f + NXT] -= packets
    M[f + LOST_AT] = max(M[f + LOST_AT] - packets, 0)
    M[f + HIGHEST] -= packets
    M[f + RECOVER] -= packets
    M[f + RACK_SEQUENCE] -= packets
    if M[k + K_RACK] == 0:
        M[f + RACK_AT] -= packets  # with duplicate counting: how far they have been counted
    if M[f + PROBE]:
        M[f + PROBE] -= 2 * packets
    if M[f + UNDO]:
        M[f + UNDO] = max(M[f + UNDO] - packets, 1)
    if M[k + K_CONTROL] == DCTCP:
        M[f + OBSERVED] -= packets
    for word in (ROUND, ROUND_RTT, STEP_UNTIL):
        M[extra_word(M, f, word)] -= packets
