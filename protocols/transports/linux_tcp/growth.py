"""Growth and reduction of the Linux sender's window: slow start with HyStart or HyStart++; NewReno, CUBIC or DCTCP.

* HyStart++ (RFC 9406): slow start becomes conservative, a quarter as fast, when the smallest round trip of a round has
  grown by an eighth of the last round's, limited to 4 to 16 ms; if it falls below again, slow start continues; after
  five rounds it ends. A window grows by at most eight packets per acknowledgement, unless it is paced.
* HyStart of the kernel's CUBIC [net/ipv4/tcp_cubic.c; Ha and Rhee, Computer Networks 55(9), 2011]: from 16 packets on,
  slow start ends when acknowledgements less than 2 ms apart have been arriving for half of the smallest round trip (and
  the time of 256 KiB at the pacing rate, at most 1 ms), or when the smallest of eight round trips is an eighth, 4 to 16
  ms, above the smallest.
* A reduction after marks is DCTCP's share of the window; after losses DCTCP halves it, as NewReno.
"""

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.common.cubic_curve import EPOCH, K_BETA, SEEN, W_MAX, avoid_congestion, record_peak
from gradwire.protocols.transports.common.window import (
    ACKED,
    ALPHA,
    CWND,
    FLIGHT,
    MARKED,
    MAX_WINDOW,
    MIN_WINDOW,
    NXT,
    SHIFT,
    SRTT,
    SSTHRESH,
    UNA,
    observe,
)
from gradwire.protocols.transports.linux_tcp.layout import (
    BASELINE,
    BEFORE_LEAST,
    CONSERVATIVE,
    CUBIC,
    DCTCP,
    HYSTART,
    HYSTART_PLUS,
    K_CONTROL,
    K_PACING,
    K_SLOW_START,
    LAST_ACK,
    LEAST_RTT,
    ROUND,
    ROUND_AT,
    ROUND_LEAST,
    SAMPLES,
    SLOW_START_ENDED,
    extra_word,
)

MS = 10**9  # ps
LEAST_RISE, MOST_RISE = 4 * MS, 16 * MS
ENOUGH = 8  # samples of a round before it is judged
ROUNDS = 5  # of conservative slow start
SLOWER = 4
BURST = 8  # maximum growth per acknowledgement, packets
FROM = 16  # HyStart: smallest window, packets
TRAIN = 2 * MS


@njit
def threshold(M, k, f, loss):
    """Return the target of a reduction. `loss`: for a loss, not for a mark."""
    window = M[f + CWND]
    control = M[k + K_CONTROL]
    if control == CUBIC:
        record_peak(M, k, f)
        return max(window * M[k + K_BETA] >> 20, MIN_WINDOW)
    if control == DCTCP and not loss:
        return max(window - (window * M[f + ALPHA] >> 21), MIN_WINDOW)
    return max(window >> 1, MIN_WINDOW)


@njit
def timed_out(M, k, f):
    """Reset after a time-out: CUBIC forgets its curve (RFC 9438, section 4.8), and slow start begins again."""
    if M[k + K_CONTROL] == CUBIC:
        M[f + W_MAX] = 0
        M[f + EPOCH] = 0
    M[extra_word(M, f, SLOW_START_ENDED)] = 0
    M[extra_word(M, f, BASELINE)] = 0


@njit
def count_marks(M, k, f, newly, echo):
    """Update DCTCP's share of marks, once per window (RFC 8257)."""
    if M[k + K_CONTROL] != DCTCP:
        return
    M[f + ACKED] += newly
    if echo:
        M[f + MARKED] += newly
    observe(M, k, f)


@njit
def _new_round(M, f, now):
    M[extra_word(M, f, ROUND)] = M[f + NXT]
    M[extra_word(M, f, ROUND_AT)] = now
    M[extra_word(M, f, LAST_ACK)] = now
    M[extra_word(M, f, BEFORE_LEAST)] = M[extra_word(M, f, ROUND_LEAST)]
    M[extra_word(M, f, ROUND_LEAST)] = 0
    M[extra_word(M, f, SAMPLES)] = 0


@njit
def _note(M, f, rtt):
    least = extra_word(M, f, ROUND_LEAST)
    if M[least] == 0 or rtt < M[least]:
        M[least] = rtt
    M[extra_word(M, f, SAMPLES)] += 1


@njit
def _hystart(M, k, f, rtt, now, train):
    """Apply the kernel's rule: end slow start by setting its threshold."""
    if M[f + UNA] > M[extra_word(M, f, ROUND)]:
        _new_round(M, f, now)
    if M[f + CWND] < FROM << SHIFT:
        return
    if now - M[extra_word(M, f, LAST_ACK)] <= TRAIN:
        M[extra_word(M, f, LAST_ACK)] = now
        patience = M[f + LEAST_RTT]
        if M[f + SRTT]:
            # 256 KiB at the pacing rate: twice the window per round trip, 1.2 times from half of the threshold on
            faster = 200 if M[f + CWND] < M[f + SSTHRESH] >> 1 else 120
            patience += min(MS, 100 * train * M[f + SRTT] // (faster * max(M[f + CWND] >> SHIFT, 1)))
        if M[k + K_PACING] == 0:
            patience >>= 1
        if now - M[extra_word(M, f, ROUND_AT)] > patience:
            M[extra_word(M, f, SLOW_START_ENDED)] = 1
            M[f + SSTHRESH] = M[f + CWND]
    enough = M[extra_word(M, f, SAMPLES)] >= ENOUGH
    _note(M, f, rtt)
    rise = min(max(M[f + LEAST_RTT] >> 3, LEAST_RISE), MOST_RISE)
    if enough and M[extra_word(M, f, ROUND_LEAST)] > M[f + LEAST_RTT] + rise:
        M[extra_word(M, f, SLOW_START_ENDED)] = 1
        M[f + SSTHRESH] = M[f + CWND]


@njit
def _hystart_plus(M, k, f, rtt, now):
    """Apply RFC 9406, section 4.2; the acknowledgement that ends a round is its last one."""
    _note(M, f, rtt)
    least, before = M[extra_word(M, f, ROUND_LEAST)], M[extra_word(M, f, BEFORE_LEAST)]
    if M[extra_word(M, f, SAMPLES)] >= ENOUGH:
        if M[extra_word(M, f, BASELINE)]:
            if least < M[extra_word(M, f, BASELINE)]:
                M[extra_word(M, f, BASELINE)] = 0
        elif before and least >= before + min(max(before >> 3, LEAST_RISE), MOST_RISE):
            M[extra_word(M, f, BASELINE)] = least
            M[extra_word(M, f, CONSERVATIVE)] = 0
    if M[f + UNA] < M[extra_word(M, f, ROUND)]:
        return
    _new_round(M, f, now)
    if M[extra_word(M, f, BASELINE)]:
        M[extra_word(M, f, CONSERVATIVE)] += 1
        if M[extra_word(M, f, CONSERVATIVE)] >= ROUNDS:  # the first round counts
            M[extra_word(M, f, SLOW_START_ENDED)] = 1
            M[f + SSTHRESH] = M[f + CWND]


@njit
def watch_slow_start(M, k, f, rtt, now, train):
    """Process a round trip measured in slow start."""
    if rtt == 0 or M[f + CWND] >= M[f + SSTHRESH] or M[extra_word(M, f, SLOW_START_ENDED)]:
        return
    if M[k + K_SLOW_START] == HYSTART:
        _hystart(M, k, f, rtt, now, train)
    elif M[k + K_SLOW_START] == HYSTART_PLUS:
        _hystart_plus(M, k, f, rtt, now)


@njit
def grow(M, k, f, newly, now):
    """Grow the window if it limits the sender."""
    window = M[f + CWND]
    used = (M[f + FLIGHT] + newly) << SHIFT
    since = now
    if M[k + K_CONTROL] == CUBIC:
        since = M[f + SEEN]
        M[f + SEEN] = now
    if window < M[f + SSTHRESH]:
        if window > 2 * used:
            return
        packets = newly << SHIFT
        if M[k + K_SLOW_START] == HYSTART_PLUS:
            if M[k + K_PACING] == 0:
                packets = min(packets, BURST << SHIFT)
            if M[extra_word(M, f, BASELINE)]:
                packets //= SLOWER
        M[f + CWND] = min(window + packets, max(M[f + SSTHRESH], window), MAX_WINDOW)
    elif M[k + K_CONTROL] == CUBIC:
        avoid_congestion(M, k, f, newly, now, since)
    elif used + (1 << SHIFT) > window:
        M[f + CWND] = min(window + (newly << (2 * SHIFT)) // window, MAX_WINDOW)
