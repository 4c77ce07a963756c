"""Writes data packets, probes and answers as datagrams into the outgoing batch, when the NIC schedule or the receiver
asks."""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import add, name_of
from gradwire.emu.agent.core.timers import ask
from gradwire.emu.native.calls import words_at
from gradwire.emu.wire.header import ACK, DATA, ECHO, IMPORTANT, WORD
from gradwire.jit import layout as words_of
from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import IMPORTANT_FLAG, bit
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD

TAGS = at.SENDER_RECORD + words_of.S_TAGS
PULL_PROBE = words_of.PULL_PROBE
KIND_MASK, ECHO_BIT, SIZE_AT, SIZE_MASK = 7, 8, 4, 0x3FFF
ARGUMENT_AT, ARGUMENT_MASK = 40, 0xFFFFFF
"""Fields of a receiver's answer: `gradwire.protocols.transports.base.reply`."""


@njit
def leave(A, file, name, tos, first, second, payload, length, fill):
    """Append a datagram to the outgoing ones."""
    U = words_at(A[at.W_ORIGIN] + 8 * A[at.W_OUT])
    if add(U, file, name, tos, first, second, payload, length, fill):
        A[at.W_ERRNO] = U[at.O_ERRNO]
        A[at.W_BROKEN] = at.BROKEN_CALL


@njit
def transmit(A, M, flow, what):
    """Send a data packet or a Probe as pulled from the rules; return its bytes on the link."""
    if what >= PULL_PROBE:
        return ask(A, at.ASK_PROBE, M[flow + at.F_NUMBER], what - PULL_PROBE, 0, 0)
    sequence = what & (IMPORTANT_FLAG - 1)
    if sequence >= M[flow + at.F_PACKETS]:
        A[at.W_ERRNO] = sequence
        A[at.W_BROKEN] = at.BROKEN_PULLED
        return 0
    offset = sequence * M[flow + at.F_PAYLOAD]
    length = min(M[flow + at.F_PAYLOAD], M[flow + at.F_NBYTES] - offset)
    tags = M[flow + TAGS]
    important = 1 if what & IMPORTANT_FLAG else (tags if tags <= 1 else bit(M, tags, sequence))
    tos = M[flow + at.F_TOS_IMPORTANT] if important else M[flow + at.F_TOS]
    flags = IMPORTANT if important else DATA
    first = M[flow + at.F_NUMBER] << 32 | offset & WORD
    second = length << 48 | sequence << 16 | flags
    fill = M[flow + at.F_FILL]
    leave(
        A, M[flow + at.F_FILE], M[flow + at.F_NAME], tos, first, second, M[flow + at.F_CONTENT] + offset, length, fill
    )
    return max(length + fill + UDP_OVERHEAD, MIN_FRAME)


@njit
def answer(A, M, N, end, word, sequence, slot):
    """Send the rules' answer to the packet in a slot."""
    kind = word & KIND_MASK
    if M[end + at.E_BY_SIDE] and kind != ACK:
        ask(A, at.ASK_ANSWER, M[end + at.E_NUMBER], word, sequence, slot)
        return
    size = word >> SIZE_AT & SIZE_MASK
    if size == 0:
        size = M[end + at.E_CONTROL_BYTES]
    fill = max(size, MIN_FRAME) - UDP_OVERHEAD
    flags = kind | (ECHO if word & ECHO_BIT else 0) | M[end + at.E_CONTROL_FLAGS]
    first = M[end + at.E_NUMBER] << 32 | word >> ARGUMENT_AT & ARGUMENT_MASK
    leave(A, A[at.W_DATA_FILE], name_of(N, slot), M[end + at.E_CONTROL_TOS], first, sequence << 16 | flags, 0, 0, fill)
    A[at.W_ANSWERED] += UDP_OVERHEAD + fill
