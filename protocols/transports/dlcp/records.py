"""Declares DLCP's memory records (sender, receiver, pair, host, parameters), and tracks the loss budget that messages
share.

A receiver holds the budget: later messages may use the rest that earlier ones left. Every message has its part of the
budget, `allowed_loss`, which it may lose in any case. If it is delivered with less
loss, the rest is saved at the receiver for later messages of the same step between the same two hosts in the same
direction (`pool`). Each of them may lose that much more, but no more than `max_loss` in all, and its loss beyond its
own part is subtracted. So at any time the delivered messages have lost no more than the sum of their parts, and the
messages of a worker in a step no more than the budget. Receivers need no information about each other: what a worker
leaves over at one server is not spent at another (ours).

A pair keeps the latest two budgets, one per direction: another step, or another job between the same two hosts,
replaces the budget, and the rest of the old one is forfeited.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Bitmap, Reference, Word
from gradwire.jit.records.flows import Pair, Parameters, Receiver, Sender
from gradwire.jit.records.header import StateRecord


class DlcpFlow(Sender):
    """The sender of a DLCP message."""

    sent_once = Word("packets sent at least once", "packets")
    quota = Word("packets that this pass still sends", "packets")
    urgent = Word("important packets that this pass still has to send, as delivery requires them", "packets")
    position = Word("position of this pass in the order of the message")
    droppable_phase = Word("1 once the important packets of this pass are sent and the droppable ones follow")
    passes = Word("passes before this one")
    order_offset = Word("first packet in the order of the message")
    order_stride = Word("step from one packet to the next in the order of the message", "packets")
    needed = Word("packets required for delivery", "packets")
    timed = Word("packet whose round trip is measured, -1 = none")
    timed_at = Word("send time of the timed packet", "ps")
    probe_number = Word("number of the last probe")
    probes_sent = Word("probes sent, repetitions included")
    probe_state = Word("IDLE, QUIET, DUE, or the number of parts of the answer still to come")
    probe_wait = Word("time until the probe is repeated", "ps")
    next_query = Word("next part to request again, counted from 1; 0 = none")
    midway_state = Word("state of the query about important packets in the middle of the first pass")
    resends_left = Word("important packets reported missing midway and not retransmitted yet", "packets")
    resend_from = Word("where the search for the next such packet in `resend` starts")
    pair = Reference(lambda: DlcpPair, "state that the messages of the pair share at its sender")
    resend = Bitmap(0, "packets reported missing: those to send in this pass")
    awaited = Bitmap(1, "parts of a Bitmap that are awaited")
    sent_packets = Bitmap(2, "packets sent so far")


class DlcpParameters(Parameters):
    """The parameters of DLCP."""

    stop_policy = Word("EARLY, EAGER or ON_PROBE")
    rate_control = Word("BY_RECEIVER, BY_MARKS or BY_DELAY")
    gain = Word("weight of the newest round trip in the estimate of the marked share", "20-bit fraction")
    rate_floor = Word("smallest rate, as a share of the line rate", "20-bit fraction")
    probe_timeout = Word("base time-out of a probe", "ps")
    important_must_arrive = Word("1: a message is complete only with all its important packets")
    base_rtt = Word("base round trip", "ps")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")
    t_low = Word("TIMELY: lower threshold of the round trip", "ps")
    t_high = Word("TIMELY: upper threshold of the round trip", "ps")
    beta = Word("TIMELY: multiplicative decrease", "20-bit fraction")
    ewma = Word("TIMELY: weight of the newest difference of round trips", "20-bit fraction")
    add_step = Word("TIMELY: additive increase, as a share of the line rate", "20-bit fraction")
    send_order = Word("IMPORTANT_FIRST, SEQUENTIAL or RANDOM")
    payload = Word("payload of a full packet", "bytes")
    slowest_link = Word("slowest link on the flow's paths", "ps/B << 16")


class DlcpPair(Pair):
    """State that the messages of a pair share at their sender."""

    rate = Word("share of the line rate; 0 before the first message", "20-bit fraction")
    alpha = Word("estimated share of marked packets", "20-bit fraction")
    acked = Word("acknowledgements in this round trip")
    marked = Word("marked acknowledgements in this round trip")
    round_end = Word("end of this round trip", "ps")
    no_reduction_until = Word("time until which marks cause no further reduction", "ps")
    srtt = Word("smoothed round trip", "ps")
    last_rtt = Word("last measured round trip, 0 = none", "ps")
    rtt_slope = Word("TIMELY: smoothed difference of round trips", "ps")
    calm_rounds = Word("TIMELY: consecutive round trips without growth of the delay")
    senders = Word("pairs that send to the receiver, as it reports; 0 = unknown")
    last_ack_at = Word("arrival time of the last acknowledgement", "ps")


class DlcpReceiver(Receiver):
    """The receiver of a DLCP message."""

    important_arrived = Word("important packets that have arrived", "packets")
    last_probe = Word("number of the last probe answered with a Bitmap")
    answer_period = Word("start of the base round trip in which each query is answered once", "ps")
    is_open = Word("1 from the first arrival until delivery")
    pair = Reference(lambda: DlcpPeer, "state that the messages of the pair share at its receiver")
    host = Reference(lambda: DlcpHost, "state that all pairs share at the receiving host")
    arrived_packets = Bitmap(0, "packets that have arrived")
    snapshot = Bitmap(1, "packets that had arrived when the last probe did")
    answered_queries = Bitmap(2, "queries answered in this period: parts, counted from 1, and 0 for everything")


class DlcpPeer(StateRecord):
    """State that the messages of a pair share at their receiver."""

    open_messages = Word("messages of the pair that have arrived in part")
    last_epoch = Word("last epoch with a packet of the pair, 0 = none")
    previous_epoch = Word("epoch with a packet of the pair before `last_epoch`, 0 = none")
    pools = Array(4, "loss budgets, one per direction: its number, and the bytes that its messages have left over")


class DlcpHost(StateRecord):
    """State of a receiving host, shared by all pairs that send to it."""

    epoch = Word("number of this epoch")
    epoch_end = Word("end of this epoch", "ps")
    senders = Word("pairs with a packet in this epoch")
    previous_senders = Word("pairs with a packet in the epoch before")


EARLY, EAGER, ON_PROBE = 0, 1, 2
"""Values of `DlcpParameters.stop_policy`."""
BY_RECEIVER, BY_MARKS, BY_DELAY = 0, 1, 2
"""Values of `DlcpParameters.rate_control`."""
IMPORTANT_FIRST, SEQUENTIAL, RANDOM = 0, 1, 2
"""Values of `DlcpParameters.send_order`."""
NOT_YET, REACHED, WAITING, ASKED, ANSWERED_MIDWAY = 0, 1, 2, 3, 4
"""Values of `DlcpFlow.midway_state`."""


@njit
def is_affordable(receiver: DlcpReceiver, lost: int) -> bool:
    """Return True if a message may be delivered with `lost` bytes missing."""
    if lost <= receiver.allowed_loss:
        return True
    pool = receiver.pool
    if pool == 0 or lost > receiver.max_loss:
        return False
    pools = receiver.pair.pools
    entry = 2 * (pool & 1)
    return pools[entry] == pool and lost <= receiver.allowed_loss + pools[entry + 1]


@njit
def spend(receiver: DlcpReceiver, lost: int) -> None:
    """Account for a delivery with `lost` bytes missing, which are affordable."""
    pool = receiver.pool
    if pool:
        pools = receiver.pair.pools
        entry = 2 * (pool & 1)
        if pools[entry] != pool:
            pools[entry] = pool
            pools[entry + 1] = 0
        pools[entry + 1] += receiver.allowed_loss - lost
