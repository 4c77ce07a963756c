"""Limits a connection's packets at the NIC as Linux does (TCP small queues), and computes its pace.

Sources: Documentation/networking/ip-sysctl, `tcp_limit_output_bytes`; net/ipv4/tcp_output.c: `tcp_small_queue_check`.

A packet is made when the window allows, joins the queue of its class, and its round trip begins. Until its transmission
begins it counts with its memory, kernel headers included. While more than the limit is queued, nothing is sent unless
nothing is in flight; `pull` is called again whenever a packet leaves. The limit is the amount sent in 1/1024 s at the
pace set by the last acknowledgement (with or without pacing), at most 1 MiB and at least two full packets; twice as
much for retransmissions.

Left out: a time-out of a packet that is still queued is treated as any other.
"""

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.linux_tcp.layout import LinuxFlow, LinuxParameters

PACKET_MEMORY = 768  # bytes beside the payload, of a packet of Linux 6.1 (measured)
LIMIT = 1 << 20  # tcp_limit_output_bytes
PS_PER_PERCENT = 9765625  # 1/1024 s, in ps, over 100: paces are in hundredths
MOST_PACKETS = 1 << 17  # so that products fit a word


@njit
def pace(flow: LinuxFlow) -> tuple[int, int]:
    """Return the pace in hundredths of a window per round trip, and the window in packets for pacing. The pace is 200
    in slow start up to half of its threshold, else 120 [net/ipv4/tcp_input.c: `tcp_update_pacing_rate`]."""
    hundredths = 200 if flow.cwnd < flow.ssthresh >> 1 else 120
    return hundredths, max(flow.cwnd >> SHIFT, flow.nxt - flow.una, 1)


@njit
def update_limit(params: LinuxParameters, flow: LinuxFlow) -> None:
    """Update the limit of queued bytes after a change of the pace."""
    if params.queue_overhead == 0:
        return
    limit = LIMIT
    if flow.srtt:
        hundredths, packets = pace(flow)
        limit = min(hundredths * min(packets, MOST_PACKETS) * params.payload * PS_PER_PERCENT // flow.srtt, LIMIT)
    flow.nic_limit = limit


@njit
def is_throttled(params: LinuxParameters, flow: LinuxFlow, is_retransmission: int) -> bool:
    """Return True if too much is queued for the next packet."""
    if params.queue_overhead == 0 or flow.nxt == flow.una:
        return False
    least = 2 * (params.payload + PACKET_MEMORY)
    # an empty queue counts for 1
    return flow.nic_backlog + 1 > max(flow.nic_limit, least) << int(is_retransmission)


@njit
def has_queued(params: LinuxParameters, flow: LinuxFlow) -> bool:
    """Return True if the last packet is still at the NIC."""
    return params.queue_overhead != 0 and flow.nic_backlog > 0


@njit
def at_nic(params: LinuxParameters, flow: LinuxFlow, nbytes: int) -> int:
    """Account for `nbytes` more bytes on the wire at the NIC (fewer if negative); return 0 if packets take turns."""
    if params.queue_overhead == 0:
        return 0
    if nbytes > 0:
        flow.nic_backlog += nbytes + params.queue_overhead
    elif nbytes < 0:
        flow.nic_backlog += nbytes - params.queue_overhead
    return 1
