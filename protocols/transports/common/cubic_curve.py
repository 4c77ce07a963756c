"""The cubic curve of TCP CUBIC (RFC 9438) grows the window in congestion avoidance, for the classic and Linux senders.

Arithmetic: integers. Windows are packets << 16; time on the curve is counted in 2^20 ps (1.05 us), at most 2^27 of them
(140 s) from its inflection; remainders of divisions are carried over, so that growth of far less than 2^-16 packets per
acknowledgement adds up.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.protocols.transports.base import ONE, fixed_mul
from gradwire.protocols.transports.common.window import MAX_WINDOW, SHIFT, WindowFlow, WindowParameters


class CubicFlow(WindowFlow):
    """The sender of CUBIC."""

    w_max = Word("W_max: plateau of the curve, the window before the last reduction", "packets << 16", at=16)
    epoch = Word("start of this congestion avoidance stage, 0 = not started", "ps")
    k = Word("K: time from the start of the stage to the plateau", "ticks")
    w_est = Word("W_est: window that Reno would have", "packets << 16")
    prior_cwnd = Word("window when ssthresh was last set", "packets << 16", at=21)
    growth_rest = Word("remainder of the division that grows the window")
    w_est_rest = Word("remainder of the division that grows W_est")
    last_ack_at = Word("time of the last acknowledgement that made progress", "ps")


class CubicParameters(WindowParameters):
    """The parameters of CUBIC."""

    beta = Word("factor of the window at a reduction", "20-bit fraction", at=5)
    alpha = Word("alpha_cubic: growth of W_est per window", "20-bit fraction")
    fast_convergence = Word("1: fast convergence")
    steepness = Word("C: steepness of the curve", "packets << 80 per tick^3")
    inverse_steepness = Word("1 / C, divided by 8 until it is below 2^24", "tick^3 per packets << 16")
    root_shift = Word("number of these divisions by 8: cube roots are shifted by it")


TICK = 20  # time on the curve in 2^TICK ps
FARTHEST = 1 << 27  # longest time from the plateau, ticks
MOST_ACKED = 4096  # packets of one acknowledgement that grow the window, at most
CUBE_SHIFT = 20


@njit
def cube_root(x: int) -> int:
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
def curve(params: CubicParameters, flow: CubicFlow, ticks: int) -> int:
    """Return W_cubic at `ticks` after the start of the stage, packets << 16."""
    distance = min(max(ticks - flow.k, -FARTHEST), FARTHEST)
    cube = (distance * distance >> 24) * distance >> CUBE_SHIFT
    return flow.w_max + (cube * params.steepness >> CUBE_SHIFT)


@njit
def _begin(params: CubicParameters, flow: CubicFlow, now: int) -> None:
    """Begin a stage of congestion avoidance: its curve starts at the present window."""
    window = flow.cwnd
    flow.epoch = now
    flow.w_est = window
    flow.growth_rest = 0
    flow.w_est_rest = 0
    if flow.w_max <= window:
        flow.w_max = window
        flow.k = 0
    else:
        flow.k = cube_root((flow.w_max - window) * params.inverse_steepness) << params.root_shift


@njit
def record_peak(params: CubicParameters, flow: CubicFlow) -> None:
    """Record the window before a reduction, for the curve of the next stage."""
    window = flow.cwnd
    if params.fast_convergence and window < flow.w_max:
        flow.w_max = fixed_mul(window, ONE + params.beta) // 2
    else:
        flow.w_max = window
    flow.prior_cwnd = window
    flow.epoch = 0


@njit
def avoid_congestion(params: CubicParameters, flow: CubicFlow, newly: int, now: int, since: int) -> None:
    """Grow the window in congestion avoidance. `since`: time of the previous acknowledgement."""
    window = flow.cwnd
    used = (flow.in_flight + newly) << SHIFT
    if flow.epoch == 0:
        _begin(params, flow, now)
    if used + (1 << SHIFT) <= window:
        flow.epoch += now - max(since, flow.epoch)
        return
    newly = min(newly, MOST_ACKED)
    divisor = window >> 8
    alpha = ONE if flow.w_est >= flow.prior_cwnd else params.alpha
    rest = flow.w_est_rest + (newly * alpha << 4)
    flow.w_est += rest // divisor
    flow.w_est_rest = rest % divisor
    elapsed = now - flow.epoch
    if curve(params, flow, elapsed >> TICK) < flow.w_est:
        flow.cwnd = min(max(window, flow.w_est), MAX_WINDOW)
        return
    target = curve(params, flow, (elapsed + flow.srtt) >> TICK)
    target = min(max(target, window), window + (window >> 1))
    rest = flow.growth_rest + ((target - window) * newly << 8)
    flow.cwnd = min(window + rest // divisor, MAX_WINDOW)
    flow.growth_rest = rest % divisor


@njit
def shift_epoch(flow: CubicFlow, now: int) -> None:
    """Shift the curve by the time in which there was nothing to send."""
    if flow.epoch > 0:
        flow.epoch += now - max(flow.last_ack_at, flow.epoch)
    flow.last_ack_at = now
