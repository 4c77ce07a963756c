"""Sets NSCC's window by quick adapt and the four cases of an acknowledgement (Ultra Ethernet 1.0, section 3.6.13)."""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.protocols.transports.base import FRACTION_BITS, ONE, fixed_mul
from gradwire.protocols.transports.common.window import SHIFT, WindowFlow, WindowParameters


class NsccFlow(WindowFlow):
    """The sender of NSCC. Its first fields replace fields of the window machinery that it does not use."""

    base_rtt = Word("smallest round trip", "ps", at=3)
    average_delay = Word("average queueing delay", "ps", at=9)
    averaged_at = Word("last update of the average delay", "ps", at=15)
    achieved = Word("quick adapt: packets acknowledged in this period", "packets")
    period_end = Word("quick adapt: end of this period, 0 = not started", "ps")
    was_trimmed = Word("quick adapt: 1 if a trimmed header has come since it last set the window")
    to_ignore = Word("packets whose marks are still to be ignored", "packets")
    received = Word("packets acknowledged since increases were last applied", "packets", at=21)
    increase = Word("increases collected since they were last applied", "packets^2 << 16")
    applied_at = Word("last increase by eta", "ps")
    reduced_at = Word("last multiplicative decrease", "ps")
    packets_without_delay = Word("consecutive packets without delay, FAST = fast increase", "packets")
    credit = Word("packets that the receiver's credit allows to send", "packets")
    pulls_received = Word("pulls received")


class NsccParameters(WindowParameters):
    """The parameters of NSCC."""

    base_rtt = Word("base round trip", "ps", at=3)
    target_delay = Word("target queueing delay", "ps")
    max_window = Word("largest window, in bandwidth-delay products", "20-bit fraction")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")
    alpha = Word("proportional increase per round trip without any delay", "packets << 16")
    fair_increase = Word("fair increase per round trip", "packets << 16")
    fast_increase = Word("fast increase, packets per acknowledged packet", "20-bit fraction")
    eta = Word("increase per round trip in any case", "packets << 16")
    gamma = Word("multiplicative decrease: factor of the excess delay's share", "20-bit fraction")
    max_decrease = Word("largest decrease, as a share of the window", "20-bit fraction")
    adapt_gate = Word("quick adapt acts below the largest window >> this")
    adapt_threshold = Word("quick adapt acts above this delay", "ps")
    apply_period = Word("increases are applied at least this often", "ps")
    apply_packets = Word("increases are applied after more than this number of packets", "packets")
    quick_adapt = Word("1: quick adapt")
    below = Word("1: data goes one class below the one of its message")
    ack_every = Word("packets per acknowledgement", "packets")
    ack_patience = Word("longest wait of a packet for its acknowledgement", "ps")
    initial_credit = Word("credit before the first pull, 0 = no receiver credits", "packets")
    has_window = Word("1: a window limits the sender")
    first_window = Word("initial window, in bandwidth-delay products", "20-bit fraction")
    sample_weight = Word("weight of a delay in the average, 0 = by the time since the last one", "20-bit fraction")


FAST = -1  # value of `packets_without_delay`: fast increase
WIDE = 1 << SHIFT  # a window of one packet
NO_DELAY = 1_000_000  # ps
MOST_INCREASE = 1 << 46
NO_WINDOW = 1 << 22 + SHIFT  # a window that never limits the sender: 4 million packets
EXACT_BELOW, WIDEST = 1 << 32, 1 << 52  # times 1000 in 20-bit fixed point, with and without its fraction, fits 64 bits


@njit
def window_of(params: NsccParameters, flow: NsccFlow, products: int) -> int:
    """Return a window of bandwidth-delay products (20-bit fraction) by the present estimate of the base round trip,
    packets << 16; at most NO_WINDOW."""
    packets = min((flow.base_rtt << SHIFT) // (params.packet_bytes * flow.ps_per_byte >> 16), WIDEST)
    if packets < EXACT_BELOW:
        return min(max(fixed_mul(packets, products), WIDE), NO_WINDOW)
    return min((packets >> FRACTION_BITS) * products, NO_WINDOW)


@njit
def largest(params: NsccParameters, flow: NsccFlow) -> int:
    """Return the largest window, packets << 16."""
    return window_of(params, flow, params.max_window)


@njit
def begin(params: NsccParameters, flow: NsccFlow, now: int) -> None:
    """Begin with the first window."""
    flow.base_rtt = params.base_rtt
    flow.cwnd = window_of(params, flow, params.first_window) if params.has_window else NO_WINDOW
    flow.averaged_at = now
    flow.applied_at = now
    flow.reduced_at = now


@njit
def average(params: NsccParameters, flow: NsccFlow, delay: int, marked: int, now: int) -> None:
    """Update the average with a delay.

    It weighs by time, or, with `sample_weight`, alike whenever it comes. htsim then takes a long delay without a mark
    for a quarter of the base round trip.
    """
    if params.sample_weight:
        if delay > params.target_delay and not marked:
            delay = flow.base_rtt >> 2
        flow.average_delay += fixed_mul(delay - flow.average_delay, params.sample_weight)
        return
    elapsed = min(now - flow.averaged_at, flow.base_rtt)
    flow.average_delay += fixed_mul(delay - flow.average_delay, elapsed * ONE // flow.base_rtt)
    flow.averaged_at = now


@njit
def shrink(params: NsccParameters, flow: NsccFlow, packets: int) -> None:
    """Reduce the window by `packets`."""
    if params.has_window:
        flow.cwnd = max(flow.cwnd - (packets << SHIFT), WIDE)


@njit
def adapt(params: NsccParameters, flow: NsccFlow, loss: int, marked: int, delay: int, now: int) -> int:
    """Apply quick adapt; return True if it set the window, or if the acknowledgement predates its last change."""
    if params.quick_adapt == 0 or params.has_window == 0:
        return False
    is_handled = False
    if flow.to_ignore > 0 and marked:
        is_handled = True
    elif now >= flow.period_end:
        achieved = flow.achieved << SHIFT
        is_congested = loss or flow.was_trimmed or delay > params.adapt_threshold
        if flow.period_end and is_congested and achieved < largest(params, flow) >> params.adapt_gate:
            flow.cwnd = max(achieved, WIDE)
            flow.to_ignore = flow.in_flight
            flow.was_trimmed = 0
            is_handled = True
        flow.achieved = 0
        flow.period_end = now + flow.base_rtt + params.target_delay
    if is_handled:
        flow.increase = 0
        flow.received = 0
    return is_handled


@njit
def _collect(gain: int, flow: NsccFlow, newly: int) -> None:
    """Collect an increase by `gain` for each of the newly acknowledged packets."""
    flow.increase = min(flow.increase + gain * newly, MOST_INCREASE)


@njit
def _raise(params: NsccParameters, flow: NsccFlow, newly: int, delay: int) -> None:
    """Apply a fast increase, or collect a proportional one."""
    if delay < NO_DELAY:
        if flow.packets_without_delay != FAST:
            flow.packets_without_delay += newly
        if flow.packets_without_delay == FAST or flow.packets_without_delay << SHIFT > flow.cwnd:
            flow.packets_without_delay = FAST
            flow.cwnd = min(flow.cwnd + (newly * params.fast_increase >> FRACTION_BITS - SHIFT), largest(params, flow))
            return
    else:
        flow.packets_without_delay = 0
    target = params.target_delay
    _collect(params.alpha * ((target - delay << 12) // target) >> 12, flow, newly)


@njit
def _lower(params: NsccParameters, flow: NsccFlow, now: int) -> None:
    """Decrease the window by the average delay, at most once per round trip."""
    flow.packets_without_delay = 0
    excess = flow.average_delay - params.target_delay
    if excess > 0 and now - flow.reduced_at > flow.base_rtt:
        share = min(fixed_mul(excess * ONE // flow.average_delay, params.gamma), params.max_decrease)
        flow.cwnd = max(flow.cwnd - fixed_mul(flow.cwnd, share), WIDE)
        flow.reduced_at = now


@njit
def _apply(params: NsccParameters, flow: NsccFlow, now: int) -> None:
    """Apply the increases collected, and eta once per period."""
    window = flow.cwnd
    window += (flow.increase << SHIFT) // window
    if now - flow.applied_at >= params.apply_period:
        flow.applied_at = now
        window += params.eta
    flow.cwnd = min(window, largest(params, flow))
    flow.increase = 0
    flow.received = 0


@njit
def update_window(params: NsccParameters, flow: NsccFlow, newly: int, marked: int, delay: int, now: int) -> None:
    """Set the window after an acknowledgement with a measured round trip, `delay` of which is queueing."""
    if adapt(params, flow, False, marked, delay, now):
        return
    if delay < params.target_delay:
        if not marked:
            _raise(params, flow, newly, delay)
    elif marked:
        _lower(params, flow, now)
    else:
        _collect(params.fair_increase, flow, newly)
    if now - flow.applied_at >= params.apply_period or flow.received > params.apply_packets:
        _apply(params, flow, now)
