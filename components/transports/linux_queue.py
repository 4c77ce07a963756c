"""What of a connection of `linux_sender` waits at the NIC: TCP small queues [Documentation/networking/ip-sysctl,
`tcp_limit_output_bytes`; net/ipv4/tcp_output.c: `tcp_small_queue_check`].

A packet is made when the window allows, joins the queue of its class, and its round trip begins. From then until its
transmission begins it counts by the memory that it takes, headers of the kernel's own included. While more than the
limit waits, nothing is sent, unless nothing is out there; whenever a packet leaves, it is tried again. The limit is
what is sent in 1/1024 s at the pace that the last acknowledgement has set - whether packets are paced or not -, 1 MiB
at most and two full packets at least; for what is sent again twice as much.

Left out: a time-out of a packet that is still there is treated as any other.
"""

from gradwire.components.compiled import njit
from gradwire.components.transports.linux_words import (
    BACKLOG,
    K_PAYLOAD,
    K_QUEUES,
    ROOM,
    more,
)
from gradwire.components.transports.window import CWND, NXT, SHIFT, SRTT, SSTHRESH, UNA

PACKET_MEMORY = 768  # bytes beside the payload, of a packet of Linux 6.1 (measured)
LIMIT = 1 << 20  # tcp_limit_output_bytes
PER_ROUND = 9765625  # a hundredth of a second, in ps, divided by 1024
MOST_PACKETS = 1 << 17  # so that products fit a word


@njit
def pace(M, f):
    """The pace in hundredths of a window per round trip: 200 in slow start up to half of its threshold, else 120; and
    how many packets the window is taken for [net/ipv4/tcp_input.c: `tcp_update_pacing_rate`]."""
    faster = 200 if M[f + CWND] < M[f + SSTHRESH] >> 1 else 120
    return faster, max(M[f + CWND] >> SHIFT, M[f + NXT] - M[f + UNA], 1)


@njit
def set_room(M, k, f):
    """The pace may have changed: how much may wait from now on."""
    if M[k + K_QUEUES] == 0:
        return
    room = LIMIT
    if M[f + SRTT]:
        faster, packets = pace(M, f)
        room = min(faster * min(packets, MOST_PACKETS) * M[k + K_PAYLOAD] * PER_ROUND // M[f + SRTT], LIMIT)
    M[more(M, f, ROOM)] = room


@njit
def throttled(M, k, f, again):
    """Whether so much waits that the next packet may not join it. `again`: it has been sent before."""
    if M[k + K_QUEUES] == 0 or M[f + NXT] == M[f + UNA]:
        return False
    least = 2 * (M[k + K_PAYLOAD] + PACKET_MEMORY)
    # an empty queue counts for 1
    return M[more(M, f, BACKLOG)] + 1 > max(M[more(M, f, ROOM)], least) << int(again)


@njit
def waits(M, k, f):
    """Whether the packet that was made last is still at the NIC."""
    return M[k + K_QUEUES] != 0 and M[more(M, f, BACKLOG)] > 0


@njit
def at_nic(M, k, f, nbytes):
    """So many bytes on the wire more wait, fewer if negative. Returns 0 if packets take turns instead."""
    if M[k + K_QUEUES] == 0:
        return 0
    if nbytes > 0:
        M[more(M, f, BACKLOG)] += nbytes + M[k + K_QUEUES]
    elif nbytes < 0:
        M[more(M, f, BACKLOG)] += nbytes - M[k + K_QUEUES]
    return 1
