"""The Linux receiver: delayed acknowledgements as in the kernel.

As `delayed_acks`, but the first packets of a connection are acknowledged one by one ("quick", sixteen in the kernel)
[net/ipv4/tcp_input.c: `tcp_event_data_recv`], and so is the last packet of a message, which is flagged (PSH) and whose
reader is waiting [net/ipv4/tcp.c: `tcp_cleanup_rbuf`]. On a persistent connection the last packet is unknown.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import R_PACKETS, R_USER
from gradwire.protocols.transports.common.delayed_acks import K_DELAY, TOP, WAITING, take
from gradwire.protocols.transports.common.window import on_data as take_at_once
from gradwire.protocols.transports.linux_tcp.layout import K_LAST, K_QUICK

QUICK = R_USER + 4  # packets acknowledged at once so far


@njit
def _take(M, k, r, sequence, size, ce, now, alike):
    quick = M[k + K_QUICK] > 0 and (
        M[r + QUICK] < M[k + K_QUICK] or (M[k + K_LAST] and sequence == M[r + R_PACKETS] - 1)
    )
    if quick and M[r + WAITING] == 0 and M[k + K_DELAY]:
        M[r + QUICK] += 1
        M[r + TOP] = max(M[r + TOP], sequence + 1)
        return take_at_once(M, k, r, sequence, size, ce, now)
    return take(M, k, r, sequence, size, ce, now, alike)


@njit
def on_data(M, k, r, sequence, size, ce, now):
    return _take(M, k, r, sequence, size, ce, now, 0)


@njit
def on_data_alike(M, k, r, sequence, size, ce, now):
    return _take(M, k, r, sequence, size, ce, now, 1)
