"""Grows and reduces the Linux sender's window by slow start with HyStart or HyStart++, NewReno, CUBIC or DCTCP.

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
from gradwire.protocols.transports.base import fixed_mul
from gradwire.protocols.transports.common.cubic_curve import avoid_congestion, record_peak
from gradwire.protocols.transports.common.window import MAX_WINDOW, MIN_WINDOW, SHIFT, observe
from gradwire.protocols.transports.linux_tcp.layout import (
    CUBIC,
    DCTCP,
    HYSTART,
    HYSTART_PLUS,
    LinuxFlow,
    LinuxParameters,
)

MS = 10**9  # ps
LEAST_RISE, MOST_RISE = 4 * MS, 16 * MS
ENOUGH_SAMPLES = 8  # round trips of a round before it is judged
CONSERVATIVE_ROUNDS = 5  # rounds of conservative slow start
CONSERVATIVE_DIVISOR = 4  # conservative slow start is slower by this
MOST_GROWTH = 8  # maximum growth per acknowledgement, packets
HYSTART_WINDOW = 16  # HyStart: smallest window, packets
TRAIN_GAP = 2 * MS  # HyStart: longest time between the acknowledgements of a train


@njit
def threshold(params: LinuxParameters, flow: LinuxFlow, loss: int) -> int:
    """Return the target of a reduction. `loss`: True for a loss, False for a mark."""
    window = flow.cwnd
    control = params.control
    if control == CUBIC:
        record_peak(params, flow)
        return max(fixed_mul(window, params.beta), MIN_WINDOW)
    if control == DCTCP and not loss:
        return max(window - fixed_mul(window, flow.alpha) // 2, MIN_WINDOW)
    return max(window >> 1, MIN_WINDOW)


@njit
def timed_out(params: LinuxParameters, flow: LinuxFlow) -> None:
    """Reset after a time-out: CUBIC forgets its curve (RFC 9438, section 4.8), and slow start begins again."""
    if params.control == CUBIC:
        flow.w_max = 0
        flow.epoch = 0
    flow.slow_start_ended = 0
    flow.css_baseline = 0


@njit
def count_marks(params: LinuxParameters, flow: LinuxFlow, newly: int, echo: int) -> None:
    """Update DCTCP's share of marks, once per window (RFC 8257)."""
    if params.control != DCTCP:
        return
    flow.acked += newly
    if echo:
        flow.marked += newly
    observe(params, flow)


@njit
def _new_round(flow: LinuxFlow, now: int) -> None:
    """Begin a round of slow start."""
    flow.round_end = flow.nxt
    flow.round_start = now
    flow.train_ack_at = now
    flow.previous_min_rtt = flow.round_min_rtt
    flow.round_min_rtt = 0
    flow.round_samples = 0


@njit
def _add_sample(flow: LinuxFlow, rtt: int) -> None:
    """Count a round trip in this round."""
    if flow.round_min_rtt == 0 or rtt < flow.round_min_rtt:
        flow.round_min_rtt = rtt
    flow.round_samples += 1


@njit
def _hystart(params: LinuxParameters, flow: LinuxFlow, rtt: int, now: int, train: int) -> None:
    """Apply the kernel's rule: end slow start by setting its threshold."""
    if flow.una > flow.round_end:
        _new_round(flow, now)
    if flow.cwnd < HYSTART_WINDOW << SHIFT:
        return
    if now - flow.train_ack_at <= TRAIN_GAP:
        flow.train_ack_at = now
        patience = flow.min_rtt
        if flow.srtt:
            # 256 KiB at the pacing rate: twice the window per round trip, 1.2 times from half of the threshold on
            pace = 200 if flow.cwnd < flow.ssthresh >> 1 else 120
            patience += min(MS, 100 * train * flow.srtt // (pace * max(flow.cwnd >> SHIFT, 1)))
        if params.pacing_bytes == 0:
            patience >>= 1
        if now - flow.round_start > patience:
            flow.slow_start_ended = 1
            flow.ssthresh = flow.cwnd
    is_enough = flow.round_samples >= ENOUGH_SAMPLES
    _add_sample(flow, rtt)
    rise = min(max(flow.min_rtt >> 3, LEAST_RISE), MOST_RISE)
    if is_enough and flow.round_min_rtt > flow.min_rtt + rise:
        flow.slow_start_ended = 1
        flow.ssthresh = flow.cwnd


@njit
def _hystart_plus(params: LinuxParameters, flow: LinuxFlow, rtt: int, now: int) -> None:
    """Apply RFC 9406, section 4.2; the acknowledgement that ends a round is its last one."""
    _add_sample(flow, rtt)
    current, previous = flow.round_min_rtt, flow.previous_min_rtt
    if flow.round_samples >= ENOUGH_SAMPLES:
        if flow.css_baseline:
            if current < flow.css_baseline:
                flow.css_baseline = 0
        elif previous and current >= previous + min(max(previous >> 3, LEAST_RISE), MOST_RISE):
            flow.css_baseline = current
            flow.css_rounds = 0
    if flow.una < flow.round_end:
        return
    _new_round(flow, now)
    if flow.css_baseline:
        flow.css_rounds += 1
        if flow.css_rounds >= CONSERVATIVE_ROUNDS:  # the first round counts
            flow.slow_start_ended = 1
            flow.ssthresh = flow.cwnd


@njit
def watch_slow_start(params: LinuxParameters, flow: LinuxFlow, rtt: int, now: int, train: int) -> None:
    """Process a round trip measured in slow start."""
    if rtt == 0 or flow.cwnd >= flow.ssthresh or flow.slow_start_ended:
        return
    if params.slow_start == HYSTART:
        _hystart(params, flow, rtt, now, train)
    elif params.slow_start == HYSTART_PLUS:
        _hystart_plus(params, flow, rtt, now)


@njit
def grow(params: LinuxParameters, flow: LinuxFlow, newly: int, now: int) -> None:
    """Grow the window if it limits the sender."""
    window = flow.cwnd
    used = (flow.in_flight + newly) << SHIFT
    since = now
    if params.control == CUBIC:
        since = flow.last_ack_at
        flow.last_ack_at = now
    if window < flow.ssthresh:
        if window > 2 * used:
            return
        packets = newly << SHIFT
        if params.slow_start == HYSTART_PLUS:
            if params.pacing_bytes == 0:
                packets = min(packets, MOST_GROWTH << SHIFT)
            if flow.css_baseline:
                packets //= CONSERVATIVE_DIVISOR
        flow.cwnd = min(window + packets, max(flow.ssthresh, window), MAX_WINDOW)
    elif params.control == CUBIC:
        avoid_congestion(params, flow, newly, now, since)
    elif used + (1 << SHIFT) > window:
        flow.cwnd = min(window + (newly << (2 * SHIFT)) // window, MAX_WINDOW)
