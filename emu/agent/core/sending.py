"""Compiled handling of outgoing packets: data of messages, and plain answers."""

from __future__ import annotations

from gradwire.emu.agent.core.datagrams import add, name_of
from gradwire.emu.agent.core.layout import (
    ASK_ANSWER,
    ASK_PROBE,
    BROKEN_CALL,
    BROKEN_PULLED,
    E_BY_SIDE,
    E_CONTROL_BYTES,
    E_CONTROL_FLAGS,
    E_CONTROL_TOS,
    E_NUMBER,
    F_CONTENT,
    F_FILE,
    F_FILL,
    F_NAME,
    F_NBYTES,
    F_NUMBER,
    F_PACKETS,
    F_PAYLOAD,
    F_TOS,
    F_TOS_IMPORTANT,
    O_ERRNO,
    SENDER_RECORD,
    W_ANSWERED,
    W_BROKEN,
    W_DATA_FILE,
    W_ERRNO,
    W_ORIGIN,
    W_OUT,
)
from gradwire.emu.agent.core.timers import ask
from gradwire.emu.native.calls import words_at
from gradwire.emu.wire.header import ACK, DATA, ECHO, IMPORTANT, WORD
from gradwire.jit import layout as at
from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import IMPORTANT_FLAG, bit
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD

TAGS = SENDER_RECORD + at.S_TAGS
PULL_PROBE = at.PULL_PROBE
KIND_MASK, ECHO_BIT, SIZE_AT, SIZE_MASK = 7, 8, 4, 0x3FFF
ARGUMENT_AT, ARGUMENT_MASK = 40, 0xFFFFFF
"""Fields of a receiver's answer: `gradwire.protocols.transports.base.reply`."""


@njit
def leave(A, file, name, tos, first, second, payload, length, fill):
    """Append a datagram to the outgoing ones."""
    U = words_at(A[W_ORIGIN] + 8 * A[W_OUT])
    if add(U, file, name, tos, first, second, payload, length, fill):
        A[W_ERRNO] = U[O_ERRNO]
        A[W_BROKEN] = BROKEN_CALL


@njit
def transmit(A, M, flow, what):
    """Send a data packet or a Probe as pulled from the rules; return its bytes on the link."""
    if what >= PULL_PROBE:
        return ask(A, ASK_PROBE, M[flow + F_NUMBER], what - PULL_PROBE, 0, 0)
    sequence = what & (IMPORTANT_FLAG - 1)
    if sequence >= M[flow + F_PACKETS]:
        A[W_ERRNO] = sequence
        A[W_BROKEN] = BROKEN_PULLED
        return 0
    offset = sequence * M[flow + F_PAYLOAD]
    length = min(M[flow + F_PAYLOAD], M[flow + F_NBYTES] - offset)
    tags = M[flow + TAGS]
    important = 1 if what & IMPORTANT_FLAG else (tags if tags <= 1 else bit(M, tags, sequence))
    tos = M[flow + F_TOS_IMPORTANT] if important else M[flow + F_TOS]
    flags = IMPORTANT if important else DATA
    first = M[flow + F_NUMBER] << 32 | offset & WORD
    second = length << 48 | sequence << 16 | flags
    fill = M[flow + F_FILL]
    leave(A, M[flow + F_FILE], M[flow + F_NAME], tos, first, second, M[flow + F_CONTENT] + offset, length, fill)
    return max(length + fill + UDP_OVERHEAD, MIN_FRAME)


@njit
def answer(A, M, N, end, word, sequence, slot):
    """Send the rules' answer to the packet in a slot."""
    kind = word & KIND_MASK
    if M[end + E_BY_SIDE] and kind != ACK:
        ask(A, ASK_ANSWER, M[end + E_NUMBER], word, sequence, slot)
        return
    size = word >> SIZE_AT & SIZE_MASK
    if size == 0:
        size = M[end + E_CONTROL_BYTES]
    fill = max(size, MIN_FRAME) - UDP_OVERHEAD
    flags = kind | (ECHO if word & ECHO_BIT else 0) | M[end + E_CONTROL_FLAGS]
    first = M[end + E_NUMBER] << 32 | word >> ARGUMENT_AT & ARGUMENT_MASK
    leave(A, A[W_DATA_FILE], name_of(N, slot), M[end + E_CONTROL_TOS], first, sequence << 16 | flags, 0, 0, fill)
    A[W_ANSWERED] += UDP_OVERHEAD + fill
