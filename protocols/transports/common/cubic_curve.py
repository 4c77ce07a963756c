"""The cubic curve of TCP CUBIC (RFC 9438), shared by the classic and the Linux sender.

Arithmetic: integers. Windows are packets << 16; time on the curve is counted in 2^20 ps (1.05 us), at most 2^27 of them
(140 s) from its inflection; remainders of divisions are carried over, so that growth of far less than 2^-16 packets per
acknowledgement adds up.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_USER
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.common.window import CWND, FLIGHT, MAX_WINDOW, SHIFT, SRTT

# a sender's own words, after those of the window machinery that CUBIC uses
W_MAX = S_USER + 16
EPOCH = S_USER + 17  # start of this congestion avoidance stage, 0 = not started
K = S_USER + 18  # in ticks
W_EST = S_USER + 19
PRIOR = S_USER + 21  # the window when ssthresh was last set
REST = S_USER + 22  # remainder of the growth of the window
REST_EST = S_USER + 23  # and of W_est
SEEN = S_USER + 24  # time of the last acknowledgement

# parameters, after those of the window machinery
K_BETA, K_ALPHA, K_CONVERGED, K_CUBE, K_ROOT, K_ROOT_SHIFT = 5, 6, 7, 8, 9, 10

TICK = 20  # time on the curve in 2^TICK ps
FARTHEST = 1 << 27  # ticks
MOST = 4096  # packets that one acknowledgement can grow the window for
CUBE_SHIFT = 20


@njit
def cube_root(x):
    """Return the integer cube root, rounded down, of 0 <= x < 2^63."""
    root = 0
    shift = 60
    while shift >= 0:
        root += root
        step = 3 * root * (root + 1) + 1
        if x >> shift >= step:
            x -= step << shift
            root += 1
        shift -= 3
    return root


@njit
def curve(M, k, f, ticks):
    """Return W_cubic at `ticks` after the start of the stage, packets << 16."""
    q = ticks - M[f + K]
    q = min(max(q, -FARTHEST), FARTHEST)
    cube = (q * q >> 24) * q >> CUBE_SHIFT
    return M[f + W_MAX] + (cube * M[k + K_CUBE] >> CUBE_SHIFT)


@njit
def _begin(M, k, f, now):
    window = M[f + CWND]
    M[f + EPOCH] = now
    M[f + W_EST] = window
    M[f + REST] = 0
    M[f + REST_EST] = 0
    if M[f + W_MAX] <= window:
        M[f + W_MAX] = window
        M[f + K] = 0
    else:
        M[f + K] = cube_root((M[f + W_MAX] - window) * M[k + K_ROOT]) << M[k + K_ROOT_SHIFT]


@njit
def record_peak(M, k, f):
    """Record the window before a reduction, for the curve of the next stage."""
    window = M[f + CWND]
    if M[k + K_CONVERGED] and window < M[f + W_MAX]:
        M[f + W_MAX] = window * (ONE + M[k + K_BETA]) >> 21
    else:
        M[f + W_MAX] = window
    M[f + PRIOR] = window
    M[f + EPOCH] = 0


@njit
def avoid_congestion(M, k, f, newly, now, since):
    """Grow the window in congestion avoidance. `since`: time of the previous acknowledgement."""
    window = M[f + CWND]
    used = (M[f + FLIGHT] + newly) << SHIFT
    if M[f + EPOCH] == 0:
        _begin(M, k, f, now)
    if used + (1 << SHIFT) <= window:
        M[f + EPOCH] += now - max(since, M[f + EPOCH])
        return
    newly = min(newly, MOST)
    divisor = window >> 8
    alpha = ONE if M[f + W_EST] >= M[f + PRIOR] else M[k + K_ALPHA]
    rest = M[f + REST_EST] + (newly * alpha << 4)
    M[f + W_EST] += rest // divisor
    M[f + REST_EST] = rest % divisor
    elapsed = now - M[f + EPOCH]
    if curve(M, k, f, elapsed >> TICK) < M[f + W_EST]:
        M[f + CWND] = min(max(window, M[f + W_EST]), MAX_WINDOW)
        return
    target = curve(M, k, f, (elapsed + M[f + SRTT]) >> TICK)
    target = min(max(target, window), window + (window >> 1))
    rest = M[f + REST] + ((target - window) * newly << 8)
    M[f + CWND] = min(window + rest // divisor, MAX_WINDOW)
    M[f + REST] = rest % divisor


@njit
def shift_epoch(M, f, now):
    """Shift the curve by the time in which there was nothing to send."""
    if M[f + EPOCH] > 0:
        M[f + EPOCH] += now - max(M[f + SEEN], M[f + EPOCH])
    M[f + SEEN] = now
