"""The sending side of TCP as a current kernel has it: NewReno, CUBIC and DCTCP over RACK, tail loss probes, PRR and F-RTO.

States and transitions are those of Linux [net/ipv4/tcp_input.c]: open, disorder (something has arrived out of order), CWR (the window
falls for a mark), recovery (for a loss), loss (after a time-out). Sources, rule by rule, each of which can be left out:

* losses by time, `linux_loss` (RFC 8985 section 6);
* tail loss probes (RFC 8985 section 7): two round trips after the last packet, a new one or the last one again;
* while the window falls, sending goes on in proportion to what arrives (RFC 9937, the successor of RFC 6937): below the target
  as in slow start when an acknowledgement makes progress and tells of no new loss, else by as much as has arrived. Marks, too;
* F-RTO (RFC 5682, with selective acknowledgements): after a time-out new packets go first, and when one that was not sent again turns out to
  have arrived, the time-out was spurious and window and threshold are as before. So they are when everything that was sent again was
  needless (RFC 2883, RFC 3708): a packet that arrives twice is told by its acknowledgement.
* growth and reductions: `linux_growth`. Pacing: twice the window per round trip in slow start up to half of its threshold, else
  1.2 times, from the eleventh packet on [net/ipv4/tcp_input.c: `tcp_update_pacing_rate`].

Left out: undoing by time stamps (RFC 4015), whose clock of a millisecond tells nothing at round trips of less; reneging.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    BLOCKED,
    S_BITS,
    S_DONE,
    S_GAP,
    S_PACKETS,
    S_SENT,
    S_TIMEOUTS,
    S_WORDS,
)
from gradwire.components.transports.base import ONE, bit, clear_bit, forget_bits, set_bit
from gradwire.components.transports.cubic import stand_still
from gradwire.components.transports.linux_growth import count_marks, grow, threshold, timed_out, watch_slow_start
from gradwire.components.transports.linux_loss import (
    ADVANCED,
    NEEDLESS,
    ORIGINAL,
    SELECTED,
    absorb,
    arm,
    find_by_time,
    lose,
    measure,
    needless,
    rearm_rto,
    recovered,
    rto,
    schedule_probe,
    watch_reordering,
)
from gradwire.components.transports.linux_words import (
    CUBIC,
    CWR,
    DCTCP,
    DELIVERED,
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
from gradwire.components.transports.recovery import find_losses
from gradwire.components.transports.window import (
    ALPHA,
    BACKOFF,
    CWND,
    FLIGHT,
    HIGHEST,
    LOST,
    LOST_AT,
    NXT,
    OBSERVED,
    RECOVER,
    SHIFT,
    SRTT,
    SSTHRESH,
    STATE,
    UNA,
)
from gradwire.components.transports.window import rest
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


# --- the window falls ------------------------------------------------------------------------------------------------


@njit
def _begin_reduction(M, k, f, loss):
    M[f + RECOVER] = M[f + NXT]
    M[f + PROBE] = 0
    M[f + PRIOR] = M[f + CWND]
    M[f + DELIVERED] = 0
    M[f + SENT] = 0
    M[f + SSTHRESH] = threshold(M, k, f, loss)


@njit
def _begin_undo(M, f):
    """From here on it may turn out that nothing was lost."""
    bits = M[f + S_BITS]
    again = bits + 2 * M[f + S_WORDS]
    out = 0
    if M[f + PROBE] & 1:
        out = 1
    for sequence in range(M[f + UNA], M[f + NXT]):
        if bit(M, again, sequence) and bit(M, bits, sequence) == 0:
            out += 1
    M[f + UNDO] = M[f + UNA] + 1
    M[f + UNDO_AGAIN] = out if out else -1


@njit
def _enter_cwr(M, k, f):
    M[f + PRIOR_THRESHOLD] = 0
    if M[f + STATE] < CWR:
        M[f + UNDO] = 0
        _begin_reduction(M, k, f, False)
        M[f + STATE] = CWR


@njit
def _enter_recovery(M, k, f, echo):
    M[f + PRIOR_THRESHOLD] = 0
    _begin_undo(M, f)
    if M[f + STATE] != CWR:
        if not echo:
            M[f + PRIOR_THRESHOLD] = M[f + SSTHRESH]
        _begin_reduction(M, k, f, True)
    M[f + STATE] = RECOVERY


@njit
def _fall(M, f, newly, found, progress):
    """Proportional rate reduction (RFC 9937 section 6)."""
    if newly <= 0:
        return
    M[f + DELIVERED] += newly
    flight = M[f + FLIGHT]
    target = M[f + SSTHRESH] >> SHIFT
    if flight > target:
        prior = max(M[f + PRIOR] >> SHIFT, 1)
        room = (target * M[f + DELIVERED] + prior - 1) // prior - M[f + SENT]
    else:
        room = max(M[f + DELIVERED] - M[f + SENT], newly)
        if progress and found == 0:
            room += 1
        room = min(target - flight, room)
    room = max(room, 0 if M[f + SENT] else 1)
    M[f + CWND] = (flight + room) << SHIFT


@njit
def _end_reduction(M, f):
    if M[f + STATE] == CWR or M[f + UNDO]:
        M[f + CWND] = M[f + SSTHRESH]


@njit
def _undo(M, f, forgive):
    """The reduction was for nothing. `forgive`: what counts as lost does no more."""
    if forgive:
        lost = M[f + S_BITS] + M[f + S_WORDS]
        for sequence in range(M[f + UNA], M[f + NXT]):
            if bit(M, lost, sequence):
                clear_bit(M, lost, sequence)
                M[f + FLIGHT] += 1
        M[f + LOST] = 0
    if M[f + PRIOR_THRESHOLD]:
        M[f + CWND] = max(M[f + CWND], M[f + PRIOR])
        M[f + SSTHRESH] = max(M[f + SSTHRESH], M[f + PRIOR_THRESHOLD])
    M[f + UNDO] = 0


@njit
def _may_undo(M, f):
    return M[f + UNDO] > 0 and M[f + UNDO_AGAIN] == 0


@njit
def _try_to_open(M, k, f, echo):
    if echo:
        _enter_cwr(M, k, f)
    if M[f + STATE] == CWR:
        return
    una = M[f + UNA]
    out = M[f + NXT] - una
    again = M[f + S_BITS] + 2 * M[f + S_WORDS]
    state = OPEN
    if out > 0 and (M[f + FLIGHT] < out or bit(M, again, una)):
        state = DISORDER
    if M[f + STATE] != state:
        M[f + STATE] = state
        M[f + RECOVER] = M[f + NXT]


# --- acknowledgements ------------------------------------------------------------------------------------------------


@njit
def _needless(M, f, sequence):
    """A packet has arrived twice."""
    if sequence < 0 or bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence) == 0:
        return
    needless(M, f)
    if M[f + UNDO] and M[f + UNDO_AGAIN] > 0 and sequence >= M[f + UNDO] - 1:
        M[f + UNDO_AGAIN] -= 1


@njit
def _probe_answered(M, k, f, told, cumulative, sequence):
    """An acknowledgement while a tail loss probe is under way (RFC 8985 section 7.4.2)."""
    high = M[f + PROBE] >> 1
    if cumulative < high:
        return
    if M[f + PROBE] & 1 == 0 or (told & NEEDLESS and sequence == high - 1):
        M[f + PROBE] = 0
    elif cumulative > high:  # the probe has made up for a loss
        _begin_reduction(M, k, f, True)
        M[f + CWND] = M[f + SSTHRESH]
        M[f + STATE] = OPEN
    elif told & (ADVANCED | SELECTED) == 0:
        M[f + PROBE] = 0


@njit
def _find(M, k, f, now):
    """Find losses. Returns whether the timer has been set, and whether a packet was lost twice."""
    if M[k + K_RACK] == 0:
        if M[f + UNA] <= M[f + HIGHEST]:
            find_losses(M, f)
        return False, False
    if M[f + UNA] > M[f + HIGHEST] and M[f + STATE] < RECOVERY and M[f + PROBE] == 0:
        return False, False
    wait, twice = find_by_time(M, f, now)
    if wait:
        watch_reordering(M, k, f, now, wait)
    return wait > 0, twice


@njit
def _after_time_out(M, f, told):
    """F-RTO (RFC 5682, section 3.1). Returns whether the state has been left by undoing."""
    advanced = told & ADVANCED
    if advanced and _may_undo(M, f):
        _undo(M, f, True)
        M[f + TRIES] = 0
        M[f + STATE] = OPEN
        return
    maybe = more(M, f, FRTO)
    done = M[f + UNA] >= M[f + RECOVER]
    if M[maybe]:
        if told & ORIGINAL:
            _undo(M, f, True)
            M[f + TRIES] = 0
            M[f + STATE] = OPEN
            return
        if M[f + NXT] > M[f + RECOVER]:
            if told & SELECTED or not advanced:
                M[maybe] = 0
        elif advanced and not done:
            M[f + RECOVER] = M[f + NXT]
            if M[f + NXT] < M[f + S_PACKETS]:
                M[f + HASTE] = NEW_FIRST
                return
            M[maybe] = 0
    if done:
        if _may_undo(M, f):
            _undo(M, f, False)
        recovered(M, f)
        M[f + STATE] = OPEN


@njit
def _leave(M, f):
    """Everything that was out there when the state began is acknowledged."""
    if M[f + STATE] == CWR:
        if M[f + UNA] != M[f + RECOVER]:
            _end_reduction(M, f)
            M[f + STATE] = OPEN
    elif M[f + STATE] == RECOVERY:
        if _may_undo(M, f):
            _undo(M, f, False)
        recovered(M, f)
        _end_reduction(M, f)
        M[f + STATE] = OPEN


@njit
def _alert(M, k, f, told, echo, now):
    """An acknowledgement that is not just the next one. Returns whether the timer has been set."""
    if echo:
        M[f + PRIOR_THRESHOLD] = 0
    if M[f + STATE] != OPEN and M[f + UNA] >= M[f + RECOVER]:
        _leave(M, f)
    if M[f + STATE] == RECOVERY:
        if _may_undo(M, f):
            _undo(M, f, False)
            M[f + STATE] = OPEN
            _try_to_open(M, k, f, echo)
        timed, _ = _find(M, k, f, now)
        if M[f + STATE] != RECOVERY and M[f + LOST] > 0:
            _enter_recovery(M, k, f, echo)
        return timed
    timed = False
    if M[f + STATE] == LOSS:
        _after_time_out(M, f, told)
        timed, twice = _find(M, k, f, now)
        if M[f + STATE] != OPEN and not twice:
            return timed
    elif M[f + STATE] <= DISORDER and _may_undo(M, f):
        _undo(M, f, False)
    again, _ = _find(M, k, f, now)
    timed = timed or again
    if M[f + LOST] == 0:
        _try_to_open(M, k, f, echo)
    else:
        _enter_recovery(M, k, f, echo)
    return timed


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
        _needless(M, f, sequence)
    count_marks(M, k, f, newly, echo)
    watch_slow_start(M, k, f, rtt, now, M[k + K_ACK_TRAIN])
    if M[f + PROBE]:
        _probe_answered(M, k, f, told, argument, sequence)
    before = M[f + LOST]
    timed = False
    if told & (SELECTED | NEEDLESS) or echo or advanced == 0 or M[f + STATE] != OPEN:
        timed = _alert(M, k, f, told, echo, now)
    if not timed and (advanced or (rtt and now - rtt > head)) and schedule_probe(M, k, f, now, 1) == 0:
        M[f + TIMER] = TIME_OUT if advanced else M[f + TIMER]
        rearm_rto(M, k, f, now)
    if M[f + STATE] == CWR or M[f + STATE] == RECOVERY:
        _fall(M, f, newly, M[f + LOST] - before, advanced)
    elif advanced:
        grow(M, k, f, newly, now)
    if M[k + K_PACING] and M[f + S_SENT] >= UNPACED:
        _pace(M, k, f)


@njit
def _pace(M, k, f):
    """The pace of the next packets."""
    faster = 200 if M[f + CWND] < M[f + SSTHRESH] >> 1 else 120
    packets = max(M[f + CWND] >> SHIFT, M[f + NXT] - M[f + UNA], 1)
    M[f + S_GAP] = (M[f + SRTT] * 100 << 10) // (faster * packets * M[k + K_PACING]) << 6


# --- timers ------------------------------------------------------------------------------------------------------------


@njit
def on_timer(M, k, f, now):
    """What the timer is for is due."""
    what = M[f + TIMER]
    if what == REORDERING:
        before = M[f + LOST]
        wait, _ = find_by_time(M, f, now)
        if M[f + LOST] > before:
            if M[f + STATE] != RECOVERY:
                _enter_recovery(M, k, f, 0)
                _fall(M, f, 1, M[f + LOST] - before, 0)
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
        _begin_undo(M, f)
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


# --- packets -----------------------------------------------------------------------------------------------------------


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
        if bit(M, M[f + S_BITS], sequence):
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
    if M[f + FLIGHT] >= M[f + CWND] >> SHIFT:
        return BLOCKED
    if M[f + HASTE] == NEW_FIRST:
        if M[f + NXT] == M[f + S_PACKETS]:
            return BLOCKED
    elif M[f + LOST] > 0:
        lost = M[f + S_BITS] + M[f + S_WORDS]
        sequence = M[f + LOST_AT]
        while bit(M, lost, sequence) == 0:
            sequence += 1
        clear_bit(M, lost, sequence)
        M[f + LOST] -= 1
        M[f + LOST_AT] = sequence + 1
        M[f + FLIGHT] += 1
        M[f + SENT] += 1
        _send_again(M, k, f, sequence, now)
        return sequence
    if M[f + NXT] == M[f + S_PACKETS]:
        return BLOCKED
    M[f + SENT] += 1
    return _send_new(M, k, f, now)


# --- streams -----------------------------------------------------------------------------------------------------------


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
