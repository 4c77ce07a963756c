"""Many datagrams per system call, each with its own TOS byte: sendmmsg(2) and recvmmsg(2).

The structures of a call are laid out once (`gradwire.emu.system.sockets`), in arenas of bytes at fixed addresses; only
numbers are written per datagram.
"""

from __future__ import annotations

import numpy as np

from gradwire.emu.agent.core import layout as at
from gradwire.emu.native.calls import (
    AGAIN,
    INTERRUPTED,
    MSG_DONTWAIT,
    NO_BUFFERS,
    POLLOUT,
    REFUSED,
    error,
    half,
    poll,
    put_word,
    recvmmsg,
    sendmmsg,
    words_at,
)
from gradwire.jit.compiled import njit

MESSAGE_WORDS, VECTOR_WORDS = 8, 4
MESSAGE_BYTES, CONTROL_BYTES, NAME_BYTES = 64, 24, 16
HEADER_BYTES = 16
HEADER_ROOM = 32
CONTROL_ROOM, TOS_AT = 64, 16
LENGTH_AT, ADDRESS_AT = 56, 4


@njit
def add(U, file, name, tos, first, second, payload, length, fill):
    """Add a datagram: a header of two words, and `length` bytes from address `payload` or `fill` zeros.

    `name` is the address of a sockaddr_in that must stay valid until `flush`. A full arena is flushed first; returns 1
    if that fails.
    """
    if U[at.O_COUNT] == U[at.O_SLOTS] and flush(U):
        return 1
    slot = U[at.O_COUNT]
    header = U[at.O_HEADERS] + slot * HEADER_ROOM
    put_word(header, first)
    put_word(header + 8, second)
    vector = words_at(U[at.O_VECTORS] + slot * VECTOR_WORDS * 8)
    vector[1] = HEADER_BYTES + fill
    vector[2] = payload
    vector[3] = length
    message = words_at(U[at.O_MESSAGES] + slot * MESSAGE_BYTES)
    message[0] = name
    message[3] = 2 if length else 1
    message[4] = U[at.O_CONTROLS] + tos * CONTROL_BYTES
    words_at(U[at.O_FILES])[slot] = file
    U[at.O_COUNT] = slot + 1
    return 0


@njit
def flush(U):
    """Send all datagrams; return 1 on an error (O_ERRNO) or if a socket stays full for O_WAIT_MS."""
    files, first, count = words_at(U[at.O_FILES]), 0, U[at.O_COUNT]
    U[at.O_COUNT] = 0
    while first < count:
        file, end = files[first], first + 1
        while end < count and files[end] == file:
            end += 1
        message = U[at.O_MESSAGES] + first * MESSAGE_BYTES
        done = np.int64(sendmmsg(np.int32(file), np.uintp(message), np.uint32(end - first), np.int32(MSG_DONTWAIT)))
        if done >= 0:
            first += int(done)
            continue
        code = error()
        if code == AGAIN or code == NO_BUFFERS:
            if not has_room(U, file, U[at.O_WAIT_MS]):
                U[at.O_ERRNO] = AGAIN
                return 1
        elif code != INTERRUPTED:
            U[at.O_ERRNO] = code
            return 1
    return 0


@njit
def has_room(U, file, wait_ms):
    """Return True if a socket is, or becomes, writable within `wait_ms`."""
    asked = words_at(U[at.O_POLL])
    asked[0] = file | POLLOUT << 32
    return np.int64(poll(np.uintp(U[at.O_POLL]), np.uint64(1), np.int32(wait_ms))) > 0


@njit
def receive(N, file):
    """Receive the available datagrams without waiting; return their number, or -1 on an error (I_ERRNO)."""
    got = np.int64(
        recvmmsg(
            np.int32(file), np.uintp(N[at.I_MESSAGES]), np.uint32(N[at.I_SLOTS]), np.int32(MSG_DONTWAIT), np.uintp(0)
        )
    )
    if got >= 0:
        return got
    code = error()
    if code == AGAIN or code == INTERRUPTED or code == REFUSED:
        return 0
    N[at.I_ERRNO] = code
    return -1


@njit
def data_of(N, slot):
    """Return the address of a datagram's bytes."""
    return N[at.I_DATA] + slot * N[at.I_ROOM]


@njit
def length_of(N, slot):
    """Return the length of a datagram in bytes."""
    return half(N[at.I_MESSAGES] + slot * MESSAGE_BYTES + LENGTH_AT)


@njit
def name_of(N, slot):
    """Return the address of a datagram's source sockaddr_in."""
    return N[at.I_NAMES] + slot * NAME_BYTES


@njit
def address_of(N, slot):
    """Return the IPv4 source address of a datagram in network order."""
    return half(N[at.I_NAMES] + slot * NAME_BYTES + ADDRESS_AT)


@njit
def tos_at(N, slot):
    """Return the address of a datagram's TOS byte."""
    return N[at.I_CONTROL] + slot * CONTROL_ROOM + TOS_AT
