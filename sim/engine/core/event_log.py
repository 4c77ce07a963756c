"""Compiled functions append delivered messages and finished senders to a thread's log, read by Python and the program
player.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import DELIVERED, FINISHED, TELL_DELIVERED, TELL_FINISHED
from gradwire.jit.records.flows import Receiver, receiver_at
from gradwire.jit.records.header import DeliveryEntry, State, Thread


@njit
def _log_done(state: State, thread: Thread, time: int, flow_number: int, what: int, received: int) -> None:
    """Log an event of a message."""
    entry = DeliveryEntry(state, thread.deliveries + thread.delivery_count * DeliveryEntry.WORDS)
    entry.time = time
    entry.flow = flow_number
    entry.what = what
    entry.received = received
    thread.delivery_count += 1


@njit
def log_delivery(state: State, thread: Thread, receiver: Receiver, flow_number: int, now: int) -> None:
    """Log the delivery of a message."""
    _log_done(state, thread, now, flow_number, DELIVERED, receiver.received_bytes)
    if receiver.notify & TELL_DELIVERED and now < thread.earliest_delivery:
        thread.earliest_delivery = now


@njit
def log_end(state: State, thread: Thread, flow_number: int, now: int) -> None:
    """Log that the sender of a message has nothing more to send."""
    _log_done(state, thread, now, flow_number, FINISHED, 0)
    tell = receiver_at(state, flow_number).notify
    if tell & TELL_FINISHED and now < thread.earliest_delivery:
        thread.earliest_delivery = now
