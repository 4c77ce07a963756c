"""Delays acknowledgements of window transports, one for every second packet or after a time (RFC 1122, RFC 5681).

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
from gradwire.jit.records.constants import ACK
from gradwire.protocols.transports.base import for_previous, reply
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.common.window import WindowParameters, WindowReceiver
from gradwire.protocols.transports.common.window import forget_received as forget_window
from gradwire.protocols.transports.common.window import on_data as acknowledge_at_once

RECEIVER_AT_REST = PersistentState(idle=(WindowReceiver.cumulative, WindowReceiver.next_above))


@njit
def take(
    params: WindowParameters, receiver: WindowReceiver, sequence: int, size: int, ce: int, now: int, alike: int
) -> int:
    """Place the packet, and acknowledge it now or later. `alike`: delay it only together with packets of equal mark, so
    that the share of marks can be measured."""
    before = receiver.cumulative
    answer = acknowledge_at_once(params, receiver, sequence, size, ce, now)
    delay = params.ack_delay
    if delay == 0:
        return answer
    receiver.next_above = max(receiver.next_above, sequence + 1)
    cumulative = receiver.cumulative
    waiting = receiver.has_unacknowledged
    mark = receiver.waiting_mark
    if cumulative == before + 1 and receiver.next_above == cumulative and (waiting == 0 or (alike and ce != mark)):
        receiver.has_unacknowledged = 1
        receiver.waiting_mark = ce
        receiver.timer = now + delay
        if waiting == 0:
            return 0
        return for_previous(reply(ACK, mark, before, 0, 1))
    receiver.has_unacknowledged = 0
    receiver.timer = 0
    return reply(ACK, ce | (waiting & mark), cumulative, 0, 1)


@njit
def on_data(params: WindowParameters, receiver: WindowReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, and acknowledge it now or later."""
    return take(params, receiver, sequence, size, ce, now, 0)


@njit
def on_data_alike(
    params: WindowParameters, receiver: WindowReceiver, sequence: int, size: int, ce: int, now: int
) -> int:
    """Place the packet, and acknowledge it now or later, together with packets of equal mark only."""
    return take(params, receiver, sequence, size, ce, now, 1)


@njit
def on_late(params: WindowParameters, receiver: WindowReceiver, now: int) -> int:
    """Acknowledge a waiting packet that no other has followed."""
    if receiver.has_unacknowledged == 0:
        return 0
    receiver.has_unacknowledged = 0
    return reply(ACK, receiver.waiting_mark, receiver.cumulative, 0, 1)


@njit
def forget_received(params: WindowParameters, receiver: WindowReceiver, packets: int) -> None:
    """Renumber packets without the first `packets` of a stream."""
    forget_window(params, receiver, packets)
    receiver.next_above -= packets
