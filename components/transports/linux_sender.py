"""The sending side of TCP as a current kernel has it: NewReno, CUBIC and DCTCP over RACK, tail loss probes, PRR and
F-RTO.

States and transitions are those of Linux [net/ipv4/tcp_input.c]: open, disorder (something has arrived out of order),
CWR (the window falls for a mark), recovery (for a loss), loss (after a time-out). Sources, rule by rule, each of
which can be left out:

* losses by time, `linux_loss` (RFC 8985 section 6);
* tail loss probes (RFC 8985 section 7): two round trips after the last packet, a new one or the last one again;
* while the window falls, sending goes on in proportion to what arrives (RFC 9937, the successor of RFC 6937): below
  the target as in slow start when an acknowledgement makes progress and tells of no new loss, else by as much as has
  arrived. Marks, too;
* F-RTO (RFC 5682, with selective acknowledgements): after a time-out new packets go first, and when one that was not
  sent again turns out to have arrived, the time-out was spurious and window and threshold are as before. So they are
  when everything that was sent again was needless (RFC 2883, RFC 3708): a packet that arrives twice is told by its
  acknowledgement.
* growth and reductions: `linux_growth`. Pacing: twice the window per round trip in slow start up to half of its
  threshold, else 1.2 times, from the eleventh packet on (`linux_queue`).
* what waits at the NIC: `linux_queue`.

Left out: undoing by time stamps (RFC 4015), whose clock of a millisecond tells nothing at round trips of less;
reneging.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import BLOCKED, S_BITS, S_DONE, S_GAP, S_PACKETS, S_SENT, S_TIMEOUTS, S_WORDS
from gradwire.components.transports.base import ONE, bit, forget_bits, set_bit
from gradwire.components.transports.cubic import stand_still
from gradwire.components.transports.linux_growth import (
    count_marks,
    grow,
    threshold,
    timed_out,
    watch_slow_start,
)
from gradwire.components.transports.linux_loss import (
    ADVANCED,
    NEEDLESS,
    SELECTED,
    absorb,
    arm,
    find_by_time,
    lose,
    measure,
    rearm_rto,
    rto,
    schedule_probe,
)
from gradwire.components.transports.linux_queue import pace, set_room, throttled, waits
from gradwire.components.transports.linux_states import (
    alert,
    begin_undo,
    came_twice,
    enter_recovery,
    fall,
    probe_answered,
)
from gradwire.components.transports.linux_words import (
    CUBIC,
    CWR,
    DCTCP,
    DISORDER,
    FRTO,
    HASTE,
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
    SENT,
    STEP_UNTIL,
    TAIL,
    TIME_OUT,
    TIMER,
    TRIES,
    UNDO,
    UNDO_AGAIN,
    more,
    stamp_of,
)
from gradwire.components.transports.lost import LOST, LOST_AT, next_lost
from gradwire.components.transports.window import (
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
    rest,
)
from gradwire.components.transports.window import start as start_window

UNPACED = 10  # packets at the beginning


@njit
def start(M, k, f, now):
    """A fresh connection; its handshake has measured a round trip, where K_HANDSHAKE says so."""
    start_window(M, k, f, now)
    M[f + RACK_SEQUENCE] = -1
    if M[k + K_CONTROL] == DCTCP:
        M[f + ALPHA] = ONE
    if M[k + K_HANDSHAKE]:
        M[f + LEAST_RTT] = M[k + K_HANDSHAKE]
        measure(M, k, f, M[k + K_HANDSHAKE])
    set_room(M, k, f)


# --- acknowledgements -----------------------------------------------------------------------------------------------


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """An acknowledgement: scoreboard, losses, states, timers, the window."""
    head = M[stamp_of(M, f, M[f + UNA])]
    told, newly, rtt = absorb(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    advanced = told & ADVANCED
    if advanced:
        M[f + TRIES] = 0
    M[f + HASTE] = NOTHING
    if told & NEEDLESS:
        came_twice(M, f, sequence)
    count_marks(M, k, f, newly, echo)
    watch_slow_start(M, k, f, rtt, now, M[k + K_ACK_TRAIN])
    if M[f + PROBE]:
        probe_answered(M, k, f, told, argument, sequence)
    before = M[f + LOST]
    timed = False
    if told & (SELECTED | NEEDLESS) or echo or advanced == 0 or M[f + STATE] != OPEN:
        timed = alert(M, k, f, told, echo, now)
    # what was sent before the first packet (last) left puts the time-out off, what was sent after it does not
    if not timed and (advanced or rtt > now - head) and schedule_probe(M, k, f, now, 1) == 0:
        rearm_rto(M, k, f, now)
    if M[f + STATE] == CWR or M[f + STATE] == RECOVERY:
        fall(M, f, newly, M[f + LOST] - before, advanced)
    elif advanced:
        grow(M, k, f, newly, now)
    if M[k + K_PACING] and M[f + S_SENT] >= UNPACED:
        _pace(M, k, f)
    set_room(M, k, f)


@njit
def _pace(M, k, f):
    """The pace of the next packets."""
    faster, packets = pace(M, f)
    M[f + S_GAP] = (M[f + SRTT] * 100 << 10) // (faster * packets * M[k + K_PACING]) << 6


# --- timers ---------------------------------------------------------------------------------------------------------


@njit
def on_timer(M, k, f, now):
    """What the timer is for is due."""
    what = M[f + TIMER]
    if what == REORDERING:
        before = M[f + LOST]
        _, _ = find_by_time(M, f, now)
        if M[f + LOST] > before:
            if M[f + STATE] != RECOVERY:
                enter_recovery(M, k, f, 0)
                fall(M, f, 1, M[f + LOST] - before, 0)
        rearm_rto(M, k, f, now)
    elif what == TAIL:
        if M[f + PROBE] == 0:
            M[f + HASTE] = PROBE_DUE
        rearm_rto(M, k, f, now)
    else:
        _time_out(M, k, f, now)


@njit
def _time_out(M, k, f, now):
    """RFC 6298 section 5, RFC 8985 section 8: what was sent less than a round trip ago is not lost yet."""
    M[f + S_TIMEOUTS] += 1
    una = M[f + UNA]
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    for sequence in range(una, M[f + NXT]):
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0:
            recent = M[k + K_RACK] and sequence > una and M[stamp_of(M, f, sequence)] + M[f + RACK_RTT] > now
            if not recent:
                lose(M, f, sequence)
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
    M[more(M, f, FRTO)] = 1 if M[k + K_FRTO] and (fresh or M[f + TRIES] > 0) else 0
    M[f + TRIES] += 1
    M[f + HASTE] = NOTHING
    if M[f + BACKOFF] < 12:
        M[f + BACKOFF] += 1
    arm(M, k, f, TIME_OUT, now, rto(M, k, f))


# --- packets --------------------------------------------------------------------------------------------------------


@njit
def _send_again(M, k, f, sequence, now):
    """A packet leaves once more."""
    again = M[f + S_BITS] + 2 * M[f + S_WORDS]
    set_bit(M, again, sequence)
    M[stamp_of(M, f, sequence)] = now
    M[f + UNDO_AGAIN] = max(M[f + UNDO_AGAIN], 0) + 1
    if sequence == M[f + UNA] and M[f + TIMER] != REORDERING:
        arm(M, k, f, TIME_OUT, now, rto(M, k, f))


@njit
def _send_new(M, k, f, now):
    """The next packet leaves for the first time."""
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
    """A tail loss probe: a new packet if there is one, else the last one again (RFC 8985 section 7.3)."""
    M[f + HASTE] = NOTHING
    if M[f + NXT] < M[f + S_PACKETS]:
        sequence = _send_new(M, k, f, now)
        M[f + PROBE] = 2 * M[f + NXT]
    else:
        sequence = M[f + NXT] - 1
        M[f + PROBE] = 2 * M[f + NXT] + 1
        if bit(M, M[f + S_BITS], sequence) or waits(M, k, f):
            M[f + PROBE] = 0
            return BLOCKED
        _send_again(M, k, f, sequence, now)
    arm(M, k, f, TIME_OUT, now, rto(M, k, f))
    return sequence


@njit
def pull(M, k, f, now):
    """A probe that is due; then, while fewer than the window are in flight, what is lost, then new packets."""
    if M[f + HASTE] == PROBE_DUE:
        return _probe(M, k, f, now)
    again = M[f + HASTE] != NEW_FIRST and M[f + LOST] > 0
    if throttled(M, k, f, again):
        return BLOCKED
    if M[f + FLIGHT] >= M[f + CWND] >> SHIFT:
        return BLOCKED
    if M[f + HASTE] == NEW_FIRST:
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
    """A stream has more to send, after a silence (RFC 5681 section 4.1, RFC 2861)."""
    rest(M, k, f, now, rto(M, k, f))
    if M[k + K_CONTROL] == CUBIC:
        stand_still(M, f, now)


@njit
def forget(M, k, f, packets):
    """The first packets of a stream are counted no more."""
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
        M[f + RACK_AT] -= packets  # where duplicates are counted it is how far they have been
    if M[f + PROBE]:
        M[f + PROBE] -= 2 * packets
    if M[f + UNDO]:
        M[f + UNDO] = max(M[f + UNDO] - packets, 1)
    if M[k + K_CONTROL] == DCTCP:
        M[f + OBSERVED] -= packets
    for word in (ROUND, ROUND_RTT, STEP_UNTIL):
        M[more(M, f, word)] -= packets
