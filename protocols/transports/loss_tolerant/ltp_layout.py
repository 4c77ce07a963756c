"""Record classes lay out an LTP sender, receiver and parameter set in the engine's state; `ltp` has settings and
behaviour.
"""

from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.flows import Parameters, Receiver, Sender


class LtpFlow(Sender):
    """The sender of an LTP message."""

    sent_once = Word("packets sent at least once", "packets")
    cursor = Word("this pass continues here")
    pass_kind = Word("CRITICAL, NORMAL or AGAIN")
    first_unacknowledged = Word("every packet below has been acknowledged")
    acked = Word("packets acknowledged", "packets")
    acks_in_pass = Word("acknowledgements in this pass")
    backoff = Word("consecutive passes without any answer")
    srtt = Word("smoothed round trip", "ps")
    min_rtt = Word("smallest round trip, 0 = none measured", "ps")
    timed = Word("packet whose round trip is measured, -1 = none")
    timed_at = Word("send time of the timed packet", "ps")
    timed_acked = Word("packets acknowledged when the timed packet was sent", "packets")
    rate = Word("share of the line rate", "20-bit fraction")
    max_sample = Word(
        "filter: largest sample of the rate in this interval, as a share of the line rate", "20-bit fraction"
    )
    previous_max = Word(
        "filter: largest sample of the rate in the interval before, as a share of the line rate", "20-bit fraction"
    )
    filter_rounds = Word("filter: samples in this interval")
    mode = Word("STARTUP, DRAIN, or index in the cycle of gains")
    full_rate = Word("start-up: the rate has to exceed this by a quarter", "20-bit fraction")
    steady_rounds = Word("start-up: consecutive round trips in which the rate did not rise by a quarter")
    acknowledged = Bitmap(0, "acknowledged packets")


class LtpReceiver(Receiver):
    """The receiver of an LTP message."""

    critical_arrived = Word("critical packets that have arrived", "packets")
    first_arrival = Word("arrival time of the first packet, 0 = none", "ps")
    ideal_time = Word("unloaded transfer time of the message", "ps")
    arrived_packets = Bitmap(0, "packets that arrived before the delivery")
    late_packets = Bitmap(1, "packets that arrived after the delivery")


class LtpParameters(Parameters):
    """The parameters of LTP."""

    packet_bytes = Word("bytes on the wire of a full packet", "bytes")
    base_rtt = Word("base round trip", "ps")
    timeout = Word("smallest wait before retransmissions if nothing came back", "ps")
    initial_window = Word("packets in the first round trip", "packets")
    rate_floor = Word("smallest rate, as a share of the line rate", "20-bit fraction")
    ps_per_byte = Word("sender's link", "ps/B << 8")
    loss_threshold = Word("time until which the whole message is awaited", "unloaded transfer times << 8")
    deadline = Word("time from which on any loss within the bound is accepted", "unloaded transfer times << 8")
    missing_share = Word("share of the bytes that may be missing before the deadline", "20-bit fraction")
    critical_only = Word("1: every critical packet must arrive")
    line_over_slowest = Word("speed of the sender's link over that of the slowest link on its paths", "<< 10")


CRITICAL, NORMAL, AGAIN = 0, 1, 2
"""Values of `LtpFlow.pass_kind`."""
STARTUP, DRAIN = -2, -1
"""Values of `LtpFlow.mode`."""
