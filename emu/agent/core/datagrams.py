"""Many datagrams per system call, each with its own TOS byte: sendmmsg(2) and recvmmsg(2).

The structures of a call are laid out once (`gradwire.emu.system.sockets`), in arenas of bytes at fixed addresses; only
numbers are written per datagram.
"""

from __future__ import annotations

import numpy as np

from gradwire.emu.agent.core import layout as at
from gradwire.emu.native import calls
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
    calls.put_word(header, first)
    calls.put_word(header + 8, second)
    vector = calls.words_at(U[at.O_VECTORS] + slot * VECTOR_WORDS * 8)
    vector[1] = HEADER_BYTES + fill
    vector[2] = payload
    vector[3] = length
    message = calls.words_at(U[at.O_MESSAGES] + slot * MESSAGE_BYTES)
    message[0] = name
    message[3] = 2 if length else 1
    message[4] = U[at.O_CONTROLS] + tos * CONTROL_BYTES
    calls.words_at(U[at.O_FILES])[slot] = file
    U[at.O_COUNT] = slot + 1
    return 0


@njit
def flush(U):
    """Send all datagrams; return 1 on an error (O_ERRNO) or if a socket stays full for O_WAIT_MS."""
    files, first, count = calls.words_at(U[at.O_FILES]), 0, U[at.O_COUNT]
    U[at.O_COUNT] = 0
    while first < count:
        file, end = files[first], first + 1
        while end < count and files[end] == file:
            end += 1
        message = U[at.O_MESSAGES] + first * MESSAGE_BYTES
        done = np.int64(
            calls.sendmmsg(np.int32(file), np.uintp(message), np.uint32(end - first), np.int32(calls.MSG_DONTWAIT))
        )
        if done >= 0:
            first += int(done)
            continue
        code = calls.error()
        if code == calls.AGAIN or code == calls.NO_BUFFERS:
            if not has_room(U, file, U[at.O_WAIT_MS]):
                U[at.O_ERRNO] = calls.AGAIN
                return 1
        elif code != calls.INTERRUPTED:
            U[at.O_ERRNO] = code
            return 1
    return 0


@njit
def has_room(U, file, wait_ms):
    """Return True if a socket is, or becomes, writable within `wait_ms`."""
    asked = calls.words_at(U[at.O_POLL])
    asked[0] = file | calls.POLLOUT << 32
    return np.int64(calls.poll(np.uintp(U[at.O_POLL]), np.uint64(1), np.int32(wait_ms))) > 0


@njit
def receive(N, file):
    """Receive the available datagrams without waiting; return their number, or -1 on an error (I_ERRNO)."""
    messages, slots = np.uintp(N[at.I_MESSAGES]), np.uint32(N[at.I_SLOTS])
    got = np.int64(calls.recvmmsg(np.int32(file), messages, slots, np.int32(calls.MSG_DONTWAIT), np.uintp(0)))
    if got >= 0:
        return got
    code = calls.error()
    if code == calls.AGAIN or code == calls.INTERRUPTED or code == calls.REFUSED:
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
    return calls.half(N[at.I_MESSAGES] + slot * MESSAGE_BYTES + LENGTH_AT)


@njit
def name_of(N, slot):
    """Return the address of a datagram's source sockaddr_in."""
    return N[at.I_NAMES] + slot * NAME_BYTES


@njit
def address_of(N, slot):
    """Return the IPv4 source address of a datagram in network order."""
    return calls.half(N[at.I_NAMES] + slot * NAME_BYTES + ADDRESS_AT)


@njit
def tos_at(N, slot):
    """Return the address of a datagram's TOS byte."""
    return N[at.I_CONTROL] + slot * CONTROL_ROOM + TOS_AT
