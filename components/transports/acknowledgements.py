"""Delayed acknowledgements: one for every second packet, or when none has followed for a while (RFC 1122, RFC 5681).

* A packet that arrives in its order, with no gap anywhere, waits for the next one, whose acknowledgement stands for
  both, or for `delayed_acks` to pass. All others - above a gap, in a gap, for a second time - are acknowledged at once,
  with what waits (RFC 5681 section 4.2).
* The mark of an acknowledgement is that of any packet it stands for. Where the share of marks counts (DCTCP), packets
  that wait for one acknowledgement are alike: when one comes that is not, those before it are acknowledged at once with
  their own mark, and it waits (RFC 8257 section 3.2, figure 1; our choice: with nothing waiting it waits as well, where
  Linux answers at once).
* A receiver does not know that a message has ended, so that a last odd packet is acknowledged after the delay; the
  message has been delivered by then.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import ACK, R_TIMER, R_USER
from gradwire.components.transports.at_rest import AtRest
from gradwire.components.transports.base import for_previous, reply
from gradwire.components.transports.window import CUMULATIVE
from gradwire.components.transports.window import forget_received as forget_window
from gradwire.components.transports.window import on_data as take_at_once

# a receiver's own words, after that of the window machinery
WAITING = R_USER + 1  # 1: a packet waits for its acknowledgement
MARK = R_USER + 2  # its mark
TOP = R_USER + 3  # one above the highest packet that has arrived

RECEIVER_AT_REST = AtRest(idle=(CUMULATIVE, TOP))

K_DELAY = 4  # parameter, after those of the window machinery: how long it may wait, 0 = not at all


@njit
def take(M, k, r, sequence, size, ce, now, alike):
    """Place the packet, and acknowledge now or let it wait. `alike`: only with others of its mark."""
    before = M[r + CUMULATIVE]
    answer = take_at_once(M, k, r, sequence, size, ce, now)
    delay = M[k + K_DELAY]
    if delay == 0:
        return answer
    M[r + TOP] = max(M[r + TOP], sequence + 1)
    cumulative = M[r + CUMULATIVE]
    waiting = M[r + WAITING]
    mark = M[r + MARK]
    if cumulative == before + 1 and M[r + TOP] == cumulative and (waiting == 0 or (alike and ce != mark)):
        M[r + WAITING] = 1
        M[r + MARK] = ce
        M[r + R_TIMER] = now + delay
        if waiting == 0:
            return 0
        return for_previous(reply(ACK, mark, before, 0, 1))
    M[r + WAITING] = 0
    M[r + R_TIMER] = 0
    return reply(ACK, ce | (waiting & mark), cumulative, 0, 1)


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """A data packet."""
    return take(M, k, r, sequence, size, ce, now, 0)


@njit
def on_data_alike(M, k, r, sequence, size, ce, now):
    """A data packet, where the share of marks counts."""
    return take(M, k, r, sequence, size, ce, now, 1)


@njit
def on_late(M, k, r, now):
    """Nothing has followed a packet that waits."""
    if M[r + WAITING] == 0:
        return 0
    M[r + WAITING] = 0
    return reply(ACK, M[r + MARK], M[r + CUMULATIVE], 0, 1)


@njit
def forget_received(M, k, r, packets):
    """The first packets of a stream are counted no more."""
    forget_window(M, k, r, packets)
    M[r + TOP] -= packets
