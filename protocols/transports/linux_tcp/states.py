"""States of the Linux sender: transitions by acknowledgements, and reduction of the window."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_BITS, S_PACKETS, S_WORDS
from gradwire.protocols.transports.base import bit, clear_bit
from gradwire.protocols.transports.common.lost_packets import LOST
from gradwire.protocols.transports.common.recovery import find_losses
from gradwire.protocols.transports.common.window import CWND, FLIGHT, HIGHEST, NXT, RECOVER, SHIFT, SSTHRESH, STATE, UNA
from gradwire.protocols.transports.linux_tcp.growth import threshold
from gradwire.protocols.transports.linux_tcp.layout import (
    CWR,
    DELIVERED,
    DISORDER,
    FRTO,
    K_RACK,
    LOSS,
    NEW_FIRST,
    OPEN,
    PRIOR,
    PRIOR_THRESHOLD,
    PROBE,
    RECOVERY,
    SEND_NOW,
    SENT,
    TRIES,
    UNDO,
    UNDO_AGAIN,
    extra_word,
)
from gradwire.protocols.transports.linux_tcp.loss_detection import (
    ADVANCED,
    NEEDLESS,
    ORIGINAL,
    SELECTED,
    end_recovery,
    find_by_time,
    grow_reordering_window,
    watch_reordering,
)


@njit
def begin_reduction(M, k, f, loss):
    M[f + RECOVER] = M[f + NXT]
    M[f + PROBE] = 0
    M[f + PRIOR] = M[f + CWND]
    M[f + DELIVERED] = 0
    M[f + SENT] = 0
    M[f + SSTHRESH] = threshold(M, k, f, loss)


@njit
def begin_undo(M, f):
    """Record the state needed to undo a reduction if nothing turns out to be lost."""
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
        begin_reduction(M, k, f, False)
        M[f + STATE] = CWR


@njit
def enter_recovery(M, k, f, echo):
    M[f + PRIOR_THRESHOLD] = 0
    begin_undo(M, f)
    if M[f + STATE] != CWR:
        if not echo:
            M[f + PRIOR_THRESHOLD] = M[f + SSTHRESH]
        begin_reduction(M, k, f, True)
    M[f + STATE] = RECOVERY


@njit
def reduce_proportionally(M, f, newly, found, progress):
    """Apply proportional rate reduction (RFC 9937 section 6)."""
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
    """Undo a reduction. `forgive`: packets declared lost no longer count as lost."""
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


@njit
def on_duplicate(M, f, sequence):
    """Process the report of a duplicate arrival."""
    if sequence < 0 or bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence) == 0:
        return
    grow_reordering_window(M, f)
    if M[f + UNDO] and M[f + UNDO_AGAIN] > 0 and sequence >= M[f + UNDO] - 1:
        M[f + UNDO_AGAIN] -= 1


@njit
def probe_answered(M, k, f, told, cumulative, sequence):
    """Process an acknowledgement while a tail loss probe is in flight (RFC 8985 section 7.4.2)."""
    high = M[f + PROBE] >> 1
    if cumulative < high:
        return
    if M[f + PROBE] & 1 == 0 or (told & NEEDLESS and sequence == high - 1):
        M[f + PROBE] = 0
    elif cumulative > high:  # the probe repaired a loss
        begin_reduction(M, k, f, True)
        M[f + CWND] = M[f + SSTHRESH]
        M[f + STATE] = OPEN
    elif told & (ADVANCED | SELECTED) == 0:
        M[f + PROBE] = 0


@njit
def _find(M, k, f, now):
    """Detect losses; return whether the timer was set, and whether a packet was lost twice."""
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
    """Apply F-RTO (RFC 5682, section 3.1) after a time-out."""
    advanced = told & ADVANCED
    if advanced and _may_undo(M, f):
        _undo(M, f, True)
        M[f + TRIES] = 0
        M[f + STATE] = OPEN
        return
    maybe = extra_word(M, f, FRTO)
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
                M[f + SEND_NOW] = NEW_FIRST
                return
            M[maybe] = 0
    if done:
        if _may_undo(M, f):
            _undo(M, f, False)
        end_recovery(M, f)
        M[f + STATE] = OPEN


@njit
def _leave(M, f):
    """Leave the state once all packets in flight at its start are acknowledged."""
    if M[f + STATE] == CWR:
        if M[f + UNA] != M[f + RECOVER]:
            _end_reduction(M, f)
            M[f + STATE] = OPEN
    elif M[f + STATE] == RECOVERY:
        if _may_undo(M, f):
            _undo(M, f, False)
        end_recovery(M, f)
        _end_reduction(M, f)
        M[f + STATE] = OPEN


@njit
def update_state(M, k, f, told, echo, now):
    """Process an acknowledgement other than an in-order one; return whether the timer was set."""
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
            enter_recovery(M, k, f, echo)
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
        enter_recovery(M, k, f, echo)
    return timed
