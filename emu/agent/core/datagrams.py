"""Sends and receives many UDP datagrams per system call, each with its own TOS byte, in compiled code (sendmmsg,
recvmmsg).

The structures of a call are laid out once (`gradwire.emu.system.sockets`), in arenas of bytes at fixed addresses; only
numbers are written per datagram.
"""

from __future__ import annotations

import numpy as np

from gradwire.emu.agent.core.layout import IncomingDatagrams, MessageHeader, OutgoingDatagrams, Vectors
from gradwire.emu.native import calls
from gradwire.jit.compiled import njit

MESSAGE_BYTES, CONTROL_BYTES, NAME_BYTES = 64, 24, 16
HEADER_BYTES = 16
HEADER_SPACE = 32
CONTROL_SPACE, TOS_AT = 64, 16
LENGTH_AT, ADDRESS_AT = 56, 4


@njit
def add(
    outgoing: OutgoingDatagrams,
    file: int,
    name: int,
    tos: int,
    first: int,
    second: int,
    payload: int,
    length: int,
    fill: int,
) -> int:
    """Add a datagram: a header of two words, and `length` bytes from address `payload` or `fill` zeros.

    `name` is the address of a sockaddr_in that must stay valid until `flush`. A full arena is flushed first; returns 1
    if that fails.
    """
    if outgoing.count == outgoing.slots and flush(outgoing):
        return 1
    slot = outgoing.count
    header = outgoing.headers + slot * HEADER_SPACE
    calls.put_word(header, first)
    calls.put_word(header + 8, second)
    vectors = Vectors(calls.words_at(outgoing.vectors), slot * Vectors.WORDS)
    vectors.header_bytes = HEADER_BYTES + fill
    vectors.payload = payload
    vectors.payload_bytes = length
    message = MessageHeader(calls.words_at(outgoing.messages), slot * MessageHeader.WORDS)
    message.name = name
    message.vector_count = 2 if length else 1
    message.control = outgoing.controls + tos * CONTROL_BYTES
    calls.words_at(outgoing.files)[slot] = file
    outgoing.count = slot + 1
    return 0


@njit
def flush(outgoing: OutgoingDatagrams) -> int:
    """Send all datagrams; return 1 on an error (`error`) or if a socket stays full for `wait_ms`."""
    files, first, count = calls.words_at(outgoing.files), 0, outgoing.count
    outgoing.count = 0
    while first < count:
        file, end = files[first], first + 1
        while end < count and files[end] == file:
            end += 1
        message = outgoing.messages + first * MESSAGE_BYTES
        done = np.int64(
            calls.sendmmsg(np.int32(file), np.uintp(message), np.uint32(end - first), np.int32(calls.MSG_DONTWAIT))
        )
        if done >= 0:
            first += int(done)
            continue
        code = calls.error()
        if code == calls.AGAIN or code == calls.NO_BUFFERS:
            if not has_space(outgoing, file, outgoing.wait_ms):
                outgoing.error = calls.AGAIN
                return 1
        elif code != calls.INTERRUPTED:
            outgoing.error = code
            return 1
    return 0


@njit
def has_space(outgoing: OutgoingDatagrams, file: int, wait_ms: int) -> bool:
    """Return True if a socket is, or becomes, writable within `wait_ms`."""
    query = calls.words_at(outgoing.poll)
    query[0] = file | calls.POLLOUT << 32
    return int(np.int64(calls.poll(np.uintp(outgoing.poll), np.uint64(1), np.int32(wait_ms)))) > 0


@njit
def receive(incoming: IncomingDatagrams, file: int) -> int:
    """Receive the available datagrams without waiting; return their number, or -1 on an error (`error`)."""
    messages, slots = np.uintp(incoming.messages), np.uint32(incoming.slots)
    count = np.int64(calls.recvmmsg(np.int32(file), messages, slots, np.int32(calls.MSG_DONTWAIT), np.uintp(0)))
    if count >= 0:
        return int(count)
    code = calls.error()
    if code == calls.AGAIN or code == calls.INTERRUPTED or code == calls.REFUSED:
        return 0
    incoming.error = code
    return -1


@njit
def data_of(incoming: IncomingDatagrams, slot: int) -> int:
    return incoming.data + slot * incoming.slot_bytes


@njit
def length_of(incoming: IncomingDatagrams, slot: int) -> int:
    return calls.half(incoming.messages + slot * MESSAGE_BYTES + LENGTH_AT)


@njit
def name_of(incoming: IncomingDatagrams, slot: int) -> int:
    """Return the address of a datagram's source sockaddr_in."""
    return incoming.names + slot * NAME_BYTES


@njit
def address_of(incoming: IncomingDatagrams, slot: int) -> int:
    """Return the IPv4 source address of a datagram in network order."""
    return calls.half(incoming.names + slot * NAME_BYTES + ADDRESS_AT)


@njit
def tos_at(incoming: IncomingDatagrams, slot: int) -> int:
    return incoming.controls + slot * CONTROL_SPACE + TOS_AT
