"""Delayed acknowledgements: one for every second packet, or after a delay (RFC 1122, RFC 5681).

* A packet that arrives in order, with no gap anywhere, waits for the next one, whose acknowledgement covers both, or
  for `delayed_acks` to pass. All others (above a gap, in a gap, duplicates) are acknowledged at once, together with a
  waiting packet (RFC 5681 section 4.2).
* An acknowledgement is marked if any packet it covers is. If the share of marks counts (DCTCP), packets that wait for
  one acknowledgement have equal marks: when one with another mark comes, those before it are acknowledged at once with
  their own mark, and it waits (RFC 8257 section 3.2, figure 1; our choice: with nothing waiting it waits as well, while
  Linux answers at once).
* A receiver does not know the end of a message, so a last odd packet is acknowledged after the delay; the message has
  been delivered by then.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import ACK, R_TIMER, R_USER
from gradwire.protocols.transports.base import for_previous, reply
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.common.window import CUMULATIVE
from gradwire.protocols.transports.common.window import forget_received as forget_window
from gradwire.protocols.transports.common.window import on_data as take_at_once

# a receiver's own words, after those of the window machinery
WAITING = R_USER + 1  # 1: a packet waits for its acknowledgement
MARK = R_USER + 2  # its mark
TOP = R_USER + 3  # one above the highest packet that has arrived

RECEIVER_AT_REST = PersistentState(idle=(CUMULATIVE, TOP))

K_DELAY = 4  # parameter, after those of the window machinery: the maximum delay, 0 = none


@njit
def take(M, k, r, sequence, size, ce, now, alike):
    """Place the packet, and acknowledge it now or later. `alike`: delay it only together with packets of equal mark, as
    transports need that measure the share of marks."""
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
    return take(M, k, r, sequence, size, ce, now, 0)


@njit
def on_data_alike(M, k, r, sequence, size, ce, now):
    return take(M, k, r, sequence, size, ce, now, 1)


@njit
def on_late(M, k, r, now):
    """Acknowledge a waiting packet that no other has followed."""
    if M[r + WAITING] == 0:
        return 0
    M[r + WAITING] = 0
    return reply(ACK, M[r + MARK], M[r + CUMULATIVE], 0, 1)


@njit
def forget_received(M, k, r, packets):
    """Renumber packets without the first `packets` of a stream."""
    forget_window(M, k, r, packets)
    M[r + TOP] -= packets
