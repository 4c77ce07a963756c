"""The window of `nscc`: quick adapt, and the four cases of an acknowledgement (Ultra Ethernet 1.0, section 3.6.13)."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_LINE, S_USER
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.common.window import CWND, FLIGHT, SHIFT

# a sender's own words: those of the window machinery that are unused here, and those after them
BASE = S_USER + 3  # smallest round trip
AVERAGE = S_USER + 9  # average delay
AVERAGED_AT = S_USER + 15
ACHIEVED = S_USER + 16  # packets that arrived in this period of quick adapt
PERIOD_ENDS = S_USER + 17  # 0 = not started
CUT = S_USER + 18  # 1: a trimmed header has come since quick adapt set the window
TO_IGNORE = S_USER + 19  # packets whose marks are still to be ignored
RECEIVED = S_USER + 21  # packets since increases were last applied
INCREASE = S_USER + 22  # packets squared << 16
APPLIED_AT = S_USER + 23
LOWERED_AT = S_USER + 24
CLEAR = S_USER + 25  # consecutive packets without delay, FAST = fast increase
# parameters, after those of the timer; 18 is `nscc`'s, 19 to 21 are for `coalesced_acks`
K_RTT, K_TARGET, K_WINDOW, K_PACKET, K_ALPHA, K_FAIR, K_FAST, K_ETA = 3, 4, 5, 6, 7, 8, 9, 10
K_GAMMA, K_JUMP, K_GATE, K_THRESHOLD, K_PERIOD, K_BATCH, K_ADAPT = 11, 12, 13, 14, 15, 16, 17
K_STEERED = 22  # 0: no window

FAST = -1
WIDE = 1 << SHIFT
NO_DELAY = 1_000_000  # 1 us
MOST_INCREASE = 1 << 46
NO_WINDOW = 1 << 22 + SHIFT


@njit
def largest(M, k, f):
    """Return the largest window with the present estimate of the base round trip, packets << 16."""
    packets = (M[f + BASE] << SHIFT) // (M[k + K_PACKET] * M[f + S_LINE] >> 16)
    return max(packets * M[k + K_WINDOW] >> 20, WIDE)


@njit
def begin(M, k, f, now):
    M[f + BASE] = M[k + K_RTT]
    M[f + CWND] = largest(M, k, f) if M[k + K_STEERED] else NO_WINDOW
    M[f + AVERAGED_AT] = now
    M[f + APPLIED_AT] = now
    M[f + LOWERED_AT] = now


@njit
def average(M, f, delay, now):
    """Update the average with a delay."""
    since = min(now - M[f + AVERAGED_AT], M[f + BASE])
    M[f + AVERAGE] += (delay - M[f + AVERAGE]) * (since * ONE // M[f + BASE]) >> 20
    M[f + AVERAGED_AT] = now


@njit
def shrink(M, k, f, packets):
    """Reduce the window by `packets`."""
    if M[k + K_STEERED]:
        M[f + CWND] = max(M[f + CWND] - (packets << SHIFT), WIDE)


@njit
def adapt(M, k, f, loss, marked, delay, now):
    """Apply quick adapt; return True if it set the window, or if the acknowledgement predates its last change."""
    if M[k + K_ADAPT] == 0 or M[k + K_STEERED] == 0:
        return False
    over = False
    if M[f + TO_IGNORE] > 0 and marked:
        over = True
    elif now >= M[f + PERIOD_ENDS]:
        achieved = M[f + ACHIEVED] << SHIFT
        wanted = loss or M[f + CUT] or delay > M[k + K_THRESHOLD]
        if M[f + PERIOD_ENDS] and wanted and achieved < largest(M, k, f) >> M[k + K_GATE]:
            M[f + CWND] = max(achieved, WIDE)
            M[f + TO_IGNORE] = M[f + FLIGHT]
            M[f + CUT] = 0
            over = True
        M[f + ACHIEVED] = 0
        M[f + PERIOD_ENDS] = now + M[f + BASE] + M[k + K_TARGET]
    if over:
        M[f + INCREASE] = 0
        M[f + RECEIVED] = 0
    return over


@njit
def _collect(M, gain, f, newly):
    M[f + INCREASE] = min(M[f + INCREASE] + gain * newly, MOST_INCREASE)


@njit
def _raise(M, k, f, newly, delay):
    if delay < NO_DELAY:
        if M[f + CLEAR] != FAST:
            M[f + CLEAR] += newly
        if M[f + CLEAR] == FAST or M[f + CLEAR] << SHIFT > M[f + CWND]:
            M[f + CLEAR] = FAST
            M[f + CWND] = min(M[f + CWND] + (newly * M[k + K_FAST] >> 20 - SHIFT), largest(M, k, f))
            return
    else:
        M[f + CLEAR] = 0
    target = M[k + K_TARGET]
    _collect(M, M[k + K_ALPHA] * ((target - delay << 12) // target) >> 12, f, newly)


@njit
def _lower(M, k, f, now):
    M[f + CLEAR] = 0
    excess = M[f + AVERAGE] - M[k + K_TARGET]
    if excess > 0 and now - M[f + LOWERED_AT] > M[f + BASE]:
        share = min(excess * ONE // M[f + AVERAGE] * M[k + K_GAMMA] >> 20, M[k + K_JUMP])
        M[f + CWND] = max(M[f + CWND] - (M[f + CWND] * share >> 20), WIDE)
        M[f + LOWERED_AT] = now


@njit
def _apply(M, k, f, now):
    window = M[f + CWND]
    window += (M[f + INCREASE] << SHIFT) // window
    if now - M[f + APPLIED_AT] >= M[k + K_PERIOD]:
        M[f + APPLIED_AT] = now
        window += M[k + K_ETA]
    M[f + CWND] = min(window, largest(M, k, f))
    M[f + INCREASE] = 0
    M[f + RECEIVED] = 0


@njit
def update_window(M, k, f, newly, marked, delay, now):
    """Set the window after an acknowledgement with a measured round trip, `delay` of which is queueing."""
    if adapt(M, k, f, False, marked, delay, now):
        return
    if delay < M[k + K_TARGET]:
        if not marked:
            _raise(M, k, f, newly, delay)
    elif marked:
        _lower(M, k, f, now)
    else:
        _collect(M, M[k + K_FAIR], f, newly)
    if now - M[f + APPLIED_AT] >= M[k + K_PERIOD] or M[f + RECEIVED] > M[k + K_BATCH]:
        _apply(M, k, f, now)
