"""The receiving side beside `linux_sender`: delayed acknowledgements as Linux has them.

As `acknowledgements`, but that the first so many packets of a connection are acknowledged one by one ("quick",
sixteen in the kernel) [net/ipv4/tcp_input.c: `tcp_event_data_recv`], and so is the last packet of a message, which
says so (PSH) and whose reader is waiting [net/ipv4/tcp.c: `tcp_cleanup_rbuf`]. On a connection that goes on, nobody
can tell.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import R_PACKETS, R_USER
from gradwire.components.transports.acknowledgements import K_DELAY, TOP, WAITING, take
from gradwire.components.transports.linux_words import K_LAST, K_QUICK
from gradwire.components.transports.window import on_data as take_at_once

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
    """A data packet."""
    return _take(M, k, r, sequence, size, ce, now, 0)


@njit
def on_data_alike(M, k, r, sequence, size, ce, now):
    """A data packet, where the share of marks counts."""
    return _take(M, k, r, sequence, size, ce, now, 1)
