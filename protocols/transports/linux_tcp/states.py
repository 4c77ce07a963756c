"""Implements the Linux TCP sender's loss states, and the reductions of the window and their undoing.

DISORDER: something has arrived out of order. CWR: the window falls for a mark. RECOVERY: it falls for a loss. LOSS: a
time-out has come. `recover` is the next new packet when a state began; "all acknowledged" means `una >= recover`. A
condition of an earlier row goes first. One acknowledgement may pass through several rows: for example, after LOSS has
ended in OPEN, an ECN echo leads on to CWR, and selectively acknowledged packets to DISORDER.

| state | event | action | next state |
|---|---|---|---|
| CWR | `una > recover` | window = ssthresh | OPEN |
| RECOVERY | all acknowledged | undo if every retransmission was needless, else window = ssthresh | OPEN |
| RECOVERY | every retransmission was needless | undo the reduction | OPEN, DISORDER, CWR or RECOVERY |
| LOSS | progress, and every retransmission was needless | undo, forgiving losses | OPEN |
| LOSS | F-RTO: a packet sent once before the time-out has arrived | undo, forgiving losses | OPEN |
| LOSS | F-RTO: first progress | send new packets first | LOSS |
| LOSS | all acknowledged | undo if every retransmission was needless | OPEN |
| LOSS | a retransmission is lost | reduce the window | RECOVERY |
| OPEN, DISORDER | every retransmission was needless | undo the reduction | same |
| OPEN, DISORDER, CWR | a packet is lost | reduce the window, unless CWR has | RECOVERY |
| OPEN, DISORDER | ECN echo, no packet is lost | reduce the window | CWR |
| OPEN, DISORDER | packets in flight were selectively acknowledged or retransmitted | | DISORDER |
| DISORDER | none were | | OPEN |
| any | a tail loss probe has repaired a loss (`probe_answered`) | reduce the window at once | OPEN |
| not RECOVERY | the reordering timer declares a packet lost (`sender.on_timer`) | reduce, unless CWR has | RECOVERY |
| any | time-out (`sender.on_timer`) | one packet more than in flight; ssthresh falls once per progress | LOSS |
"""

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import bit, clear_bit
from gradwire.protocols.transports.common.recovery import find_losses
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.linux_tcp.growth import threshold
from gradwire.protocols.transports.linux_tcp.layout import (
    CWR,
    DISORDER,
    LOSS,
    NEW_FIRST,
    OPEN,
    RECOVERY,
    LinuxFlow,
    LinuxParameters,
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
def begin_reduction(params: LinuxParameters, flow: LinuxFlow, loss: int) -> None:
    """Begin a reduction of the window. `loss`: True for a loss, False for a mark."""
    flow.recover = flow.nxt
    flow.tail_probe = 0
    flow.prior_window = flow.cwnd
    flow.prr_delivered = 0
    flow.prr_sent = 0
    flow.ssthresh = threshold(params, flow, loss)


@njit
def begin_undo(flow: LinuxFlow) -> None:
    """Record the state needed to undo a reduction if nothing turns out to be lost."""
    acknowledged = flow.acknowledged
    retransmitted = flow.retransmitted
    retransmissions = 0
    if flow.tail_probe & 1:
        retransmissions = 1
    for sequence in range(flow.una, flow.nxt):
        if bit(retransmitted, sequence) and bit(acknowledged, sequence) == 0:
            retransmissions += 1
    flow.undo_marker = flow.una + 1
    flow.undo_retransmissions = retransmissions if retransmissions else -1


@njit
def _enter_cwr(params: LinuxParameters, flow: LinuxFlow) -> None:
    """Begin a reduction for a mark, unless the window is falling."""
    flow.prior_ssthresh = 0
    if flow.loss_state < CWR:
        flow.undo_marker = 0
        begin_reduction(params, flow, False)
        flow.loss_state = CWR


@njit
def enter_recovery(params: LinuxParameters, flow: LinuxFlow, echo: int) -> None:
    """Begin a recovery, and a reduction unless one for a mark is in progress."""
    flow.prior_ssthresh = 0
    begin_undo(flow)
    if flow.loss_state != CWR:
        if not echo:
            flow.prior_ssthresh = flow.ssthresh
        begin_reduction(params, flow, True)
    flow.loss_state = RECOVERY


@njit
def reduce_proportionally(flow: LinuxFlow, newly: int, losses: int, progress: int) -> None:
    """Apply proportional rate reduction (RFC 9937 section 6). `losses`: packets newly declared lost."""
    if newly <= 0:
        return
    flow.prr_delivered += newly
    flight = flow.in_flight
    target = flow.ssthresh >> SHIFT
    if flight > target:
        prior = max(flow.prior_window >> SHIFT, 1)
        allowed = (target * flow.prr_delivered + prior - 1) // prior - flow.prr_sent
    else:
        allowed = max(flow.prr_delivered - flow.prr_sent, newly)
        if progress and losses == 0:
            allowed += 1
        allowed = min(target - flight, allowed)
    allowed = max(allowed, 0 if flow.prr_sent else 1)
    flow.cwnd = (flight + allowed) << SHIFT


@njit
def _end_reduction(flow: LinuxFlow) -> None:
    """Set the window to the target of the reduction."""
    if flow.loss_state == CWR or flow.undo_marker:
        flow.cwnd = flow.ssthresh


@njit
def _undo(flow: LinuxFlow, forgive: int) -> None:
    """Undo a reduction. `forgive`: packets declared lost no longer count as lost."""
    if forgive:
        lost = flow.lost
        for sequence in range(flow.una, flow.nxt):
            if bit(lost, sequence):
                clear_bit(lost, sequence)
                flow.in_flight += 1
        flow.lost_packets = 0
    if flow.prior_ssthresh:
        flow.cwnd = max(flow.cwnd, flow.prior_window)
        flow.ssthresh = max(flow.ssthresh, flow.prior_ssthresh)
    flow.undo_marker = 0


@njit
def _may_undo(flow: LinuxFlow) -> bool:
    """Return True if every retransmission since the reduction was needless."""
    return flow.undo_marker > 0 and flow.undo_retransmissions == 0


@njit
def _try_to_open(params: LinuxParameters, flow: LinuxFlow, echo: int) -> None:
    """Enter OPEN or DISORDER, or CWR for a mark."""
    if echo:
        _enter_cwr(params, flow)
    if flow.loss_state == CWR:
        return
    una = flow.una
    sent = flow.nxt - una
    retransmitted = flow.retransmitted
    state = OPEN
    if sent > 0 and (flow.in_flight < sent or bit(retransmitted, una)):
        state = DISORDER
    if flow.loss_state != state:
        flow.loss_state = state
        flow.recover = flow.nxt


@njit
def on_duplicate(flow: LinuxFlow, sequence: int) -> None:
    """Process the report of a duplicate arrival."""
    if sequence < 0 or bit(flow.retransmitted, sequence) == 0:
        return
    grow_reordering_window(flow)
    if flow.undo_marker and flow.undo_retransmissions > 0 and sequence >= flow.undo_marker - 1:
        flow.undo_retransmissions -= 1


@njit
def probe_answered(params: LinuxParameters, flow: LinuxFlow, report: int, cumulative: int, sequence: int) -> None:
    """Process an acknowledgement while a tail loss probe is in flight (RFC 8985 section 7.4.2)."""
    probe_end = flow.tail_probe >> 1
    if cumulative < probe_end:
        return
    if flow.tail_probe & 1 == 0 or (report & NEEDLESS and sequence == probe_end - 1):
        flow.tail_probe = 0
    elif cumulative > probe_end:  # the probe repaired a loss
        begin_reduction(params, flow, True)
        flow.cwnd = flow.ssthresh
        flow.loss_state = OPEN
    elif report & (ADVANCED | SELECTED) == 0:
        flow.tail_probe = 0


@njit
def _find_losses(params: LinuxParameters, flow: LinuxFlow, now: int) -> tuple[int, int]:
    """Detect losses. Return True if the timer was set, and True if a retransmission was lost."""
    if params.rack == 0:
        if flow.una <= flow.highest:
            find_losses(flow)
        return False, False
    if flow.una > flow.highest and flow.loss_state < RECOVERY and flow.tail_probe == 0:
        return False, False
    wait, lost_again = find_by_time(flow, now)
    if wait:
        watch_reordering(params, flow, now, wait)
    return wait > 0, lost_again


@njit
def _after_time_out(flow: LinuxFlow, report: int) -> None:
    """Apply F-RTO (RFC 5682, section 3.1) after a time-out."""
    advanced = report & ADVANCED
    if advanced and _may_undo(flow):
        _undo(flow, True)
        flow.timeouts_in_a_row = 0
        flow.loss_state = OPEN
        return
    all_acknowledged = flow.una >= flow.recover
    if flow.frto:
        if report & ORIGINAL:
            _undo(flow, True)
            flow.timeouts_in_a_row = 0
            flow.loss_state = OPEN
            return
        if flow.nxt > flow.recover:
            if report & SELECTED or not advanced:
                flow.frto = 0
        elif advanced and not all_acknowledged:
            flow.recover = flow.nxt
            if flow.nxt < flow.packets:
                flow.send_now = NEW_FIRST
                return
            flow.frto = 0
    if all_acknowledged:
        if _may_undo(flow):
            _undo(flow, False)
        end_recovery(flow)
        flow.loss_state = OPEN


@njit
def _leave(flow: LinuxFlow) -> None:
    """Leave the state once all packets in flight at its start are acknowledged."""
    if flow.loss_state == CWR:
        if flow.una != flow.recover:
            _end_reduction(flow)
            flow.loss_state = OPEN
    elif flow.loss_state == RECOVERY:
        if _may_undo(flow):
            _undo(flow, False)
        end_recovery(flow)
        _end_reduction(flow)
        flow.loss_state = OPEN


@njit
def update_state(params: LinuxParameters, flow: LinuxFlow, report: int, echo: int, now: int) -> int:
    """Process an acknowledgement other than an in-order one; return True if the timer was set."""
    if echo:
        flow.prior_ssthresh = 0
    if flow.loss_state != OPEN and flow.una >= flow.recover:
        _leave(flow)
    if flow.loss_state == RECOVERY:
        if _may_undo(flow):
            _undo(flow, False)
            flow.loss_state = OPEN
            _try_to_open(params, flow, echo)
        timer_set, _ = _find_losses(params, flow, now)
        if flow.loss_state != RECOVERY and flow.lost_packets > 0:
            enter_recovery(params, flow, echo)
        return timer_set
    timer_set = False
    if flow.loss_state == LOSS:
        _after_time_out(flow, report)
        timer_set, lost_again = _find_losses(params, flow, now)
        if flow.loss_state != OPEN and not lost_again:
            return timer_set
    elif flow.loss_state <= DISORDER and _may_undo(flow):
        _undo(flow, False)
    set_again, _ = _find_losses(params, flow, now)
    timer_set = timer_set or set_again
    if flow.lost_packets == 0:
        _try_to_open(params, flow, echo)
    else:
        enter_recovery(params, flow, echo)
    return timer_set
