"""TCP small queues: the limit of a connection's packets at the NIC.

Sources: Documentation/networking/ip-sysctl, `tcp_limit_output_bytes`; net/ipv4/tcp_output.c: `tcp_small_queue_check`.

A packet is made when the window allows, joins the queue of its class, and its round trip begins. Until its transmission
begins it counts with its memory, kernel headers included. While more than the limit is queued, nothing is sent unless
nothing is in flight; `pull` is called again whenever a packet leaves. The limit is the amount sent in 1/1024 s at the
pace set by the last acknowledgement (with or without pacing), at most 1 MiB and at least two full packets; twice as
much for retransmissions.

Left out: a time-out of a packet that is still queued is treated as any other.
"""

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.common.window import CWND, NXT, SHIFT, SRTT, SSTHRESH, UNA
from gradwire.protocols.transports.linux_tcp.layout import BACKLOG, K_PAYLOAD, K_QUEUES, ROOM, extra_word

PACKET_MEMORY = 768  # bytes beside the payload, of a packet of Linux 6.1 (measured)
LIMIT = 1 << 20  # tcp_limit_output_bytes
PER_ROUND = 9765625  # a hundredth of a second, in ps, divided by 1024
MOST_PACKETS = 1 << 17  # so that products fit a word


@njit
def pace(M, f):
    """Return the pace in hundredths of a window per round trip, and the window in packets for pacing. The pace is 200
    in slow start up to half of its threshold, else 120 [net/ipv4/tcp_input.c: `tcp_update_pacing_rate`]."""
    faster = 200 if M[f + CWND] < M[f + SSTHRESH] >> 1 else 120
    return faster, max(M[f + CWND] >> SHIFT, M[f + NXT] - M[f + UNA], 1)


@njit
def update_limit(M, k, f):
    """Update the limit of queued bytes after a change of the pace."""
    if M[k + K_QUEUES] == 0:
        return
    room = LIMIT
    if M[f + SRTT]:
        faster, packets = pace(M, f)
        room = min(faster * min(packets, MOST_PACKETS) * M[k + K_PAYLOAD] * PER_ROUND // M[f + SRTT], LIMIT)
    M[extra_word(M, f, ROOM)] = room


@njit
def is_throttled(M, k, f, again):
    """Return True if too much is queued for the next packet. `again`: it is a retransmission."""
    if M[k + K_QUEUES] == 0 or M[f + NXT] == M[f + UNA]:
        return False
    least = 2 * (M[k + K_PAYLOAD] + PACKET_MEMORY)
    # an empty queue counts for 1
    return M[extra_word(M, f, BACKLOG)] + 1 > max(M[extra_word(M, f, ROOM)], least) << int(again)


@njit
def has_queued(M, k, f):
    """Return True if the last packet is still at the NIC."""
    return M[k + K_QUEUES] != 0 and M[extra_word(M, f, BACKLOG)] > 0


@njit
def at_nic(M, k, f, nbytes):
    """Account for `nbytes` more bytes on the wire at the NIC (fewer if negative); return 0 if packets take turns."""
    if M[k + K_QUEUES] == 0:
        return 0
    if nbytes > 0:
        M[extra_word(M, f, BACKLOG)] += nbytes + M[k + K_QUEUES]
    elif nbytes < 0:
        M[extra_word(M, f, BACKLOG)] += nbytes - M[k + K_QUEUES]
    return 1
