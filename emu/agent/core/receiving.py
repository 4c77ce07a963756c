"""Compiled handling of incoming packets: data for messages to this host, and answers to packets from it.

A packet is checked before its bytes are written: its message, its length, and its source address. Python handles
anything else.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import address_of, data_of, length_of, receive, tos_at
from gradwire.emu.agent.core.nic_schedule import DONE, heard, let_go, serve, took
from gradwire.emu.agent.core.sending import answer
from gradwire.emu.agent.core.timers import ask, clock, memory, raised
from gradwire.emu.agent.shared_words import HASH_MULTIPLIER
from gradwire.emu.native.calls import byte, copy, invoke, word, words_at
from gradwire.emu.wire.header import CE, DATA, ECHO, ECN, KIND, WORD
from gradwire.jit import layout as words_of
from gradwire.jit.compiled import njit
from gradwire.scenarios.wire import GRADWIRE

R_DONE = at.RECEIVER_RECORD + words_of.R_DONE
BATCHES = 8
"""Full batches read in a row before timers are served; our choice."""


@njit
def find(table, mask, number):
    """Return the index of a message in an open-addressed table of (number + 1, index); 0 if missing."""
    T = words_at(table)
    place = number * HASH_MULTIPLIER >> 7 & mask
    while T[2 * place]:
        if T[2 * place] == number + 1:
            return T[2 * place + 1]
        place = place + 1 & mask
    return 0


@njit
def arena(A):
    """Return the arena of incoming datagrams."""
    return words_at(A[at.W_ORIGIN] + 8 * A[at.W_IN])


@njit
def take(A, N, file):
    """Receive the next datagrams of a file; return their number."""
    got = receive(N, file)
    if got < 0:
        A[at.W_ERRNO] = N[at.I_ERRNO]
        A[at.W_BROKEN] = at.BROKEN_CALL
        return 0
    return got


@njit
def read_data(A):
    """Handle incoming data packets."""
    M, N = memory(A), arena(A)
    for _ in range(BATCHES):
        got = take(A, N, A[at.W_DATA_FILE])
        if got == 0:
            return
        now = clock(A) * 1000
        for slot in range(got):
            one_packet(A, M, N, slot, now)
            if A[at.W_BROKEN]:
                return
        if A[at.W_ANSWERED]:
            let_go(A)
            took(A, A[at.W_ANSWERED], 1)
            A[at.W_ANSWERED] = 0
        deliver(A, M)
        if got < N[at.I_SLOTS] or A[at.W_BROKEN]:
            return


@njit
def deliver(A, M):
    """Deliver the messages completed by the batch."""
    end = A[at.W_FIRST_DONE]
    A[at.W_FIRST_DONE] = 0
    while end and A[at.W_BROKEN] == 0:
        following = M[end + at.E_NEXT_DONE]
        ask(A, at.ASK_DELIVER, M[end + at.E_NUMBER], 0, 0, 0)
        end = following


@njit
def complete(A, M, end):
    """Append a completed message to the list for `deliver`."""
    M[end + at.E_NEXT_DONE] = 0
    if A[at.W_FIRST_DONE]:
        M[A[at.W_LAST_DONE] + at.E_NEXT_DONE] = end
    else:
        A[at.W_FIRST_DONE] = end
    A[at.W_LAST_DONE] = end


@njit
def one_packet(A, M, N, slot, now):
    """Handle a datagram on the data socket."""
    if length_of(N, slot) < GRADWIRE:  # the rest of the slot is from an earlier datagram
        A[at.W_STRAYS] += 1
        return
    data = data_of(N, slot)
    message, second = word(data) >> 32 & WORD, word(data + 8)
    end = find(A[at.W_RECEIVERS], A[at.W_RECEIVERS_MASK], message)
    if end == 0:
        end = ask(A, at.ASK_RECEIVER, message, 0, 0, 0)
        if end == 0:
            A[at.W_STRAYS] += 1
            return
    length, sequence, flags = second >> 48 & 0xFFFF, second >> 16 & WORD, second & 0xFFFF
    finished = M[end + R_DONE]
    if not is_data(M, N, end, slot, length, sequence, flags):
        ask(A, at.ASK_NO_DATA, message, slot, now, 0)
        if M[end + R_DONE] and finished == 0:
            complete(A, M, end)
        return
    ce = 1 if byte(tos_at(N, slot)) & ECN == CE else 0
    M[end + at.E_MARKED] += ce
    if finished == 0 and length:  # a duplicate has the same bytes
        place = M[end + at.E_PLACE] + sequence * M[end + at.E_PAYLOAD]
        copy(place, data + GRADWIRE + M[end + at.E_FILL], length)
    rules = words_at(A[at.W_ORIGIN] + 8 * M[end + at.E_RULES])
    record = end + at.RECEIVER_RECORD
    answered = invoke(
        rules[at.L_ON_DATA], (A[at.W_ORIGIN], M[end + at.E_PARAMETERS], record, sequence, length, ce, now)
    )
    if answered == at.RAISED:
        raised(A, at.L_ON_DATA)
        return
    if answered:
        answer(A, M, N, end, answered, sequence, slot)
    if M[end + R_DONE] and finished == 0:
        complete(A, M, end)


@njit
def is_data(M, N, end, slot, length, sequence, flags):
    """Return True if a datagram is a valid data packet of the message it names."""
    packets, payload = M[end + at.E_PACKETS], M[end + at.E_PAYLOAD]
    if sequence >= packets or flags & KIND != DATA:
        return False
    if length != min(payload, M[end + at.E_NBYTES] - sequence * payload):
        return False
    return length_of(N, slot) >= GRADWIRE + M[end + at.E_FILL] + length and address_of(N, slot) == M[end + at.E_SOURCE]


@njit
def read_answers(A, file):
    """Handle incoming answers."""
    M, N = memory(A), arena(A)
    for _ in range(BATCHES):
        got = take(A, N, file)
        now = clock(A) * 1000
        for slot in range(got):
            one_answer(A, M, N, slot, now)
            if A[at.W_BROKEN]:
                return
        if got < N[at.I_SLOTS] or A[at.W_BROKEN]:
            break
    serve(A)


@njit
def one_answer(A, M, N, slot, now):
    """Handle a datagram on a socket for answers."""
    if length_of(N, slot) < GRADWIRE:
        A[at.W_STRAYS] += 1
        return
    data = data_of(N, slot)
    first, second = word(data), word(data + 8)
    message = first >> 32 & WORD
    flow = find(A[at.W_SENDERS], A[at.W_SENDERS_MASK], message)
    if flow == 0:
        return
    if address_of(N, slot) != M[flow + at.F_SOURCE]:
        A[at.W_STRAYS] += 1
        return
    sequence, flags = second >> 16 & WORD, second & 0xFFFF
    kind = flags & KIND
    if M[flow + at.F_HEARD] >> kind & 1 == 0 or sequence >= M[flow + at.F_PACKETS]:
        if ask(A, at.ASK_TOLD, message, slot, now, 0) == 0:
            A[at.W_STRAYS] += 1
        return
    rules, echo = words_at(A[at.W_ORIGIN] + 8 * M[flow + at.F_RULES]), 1 if flags & ECHO else 0
    record = flow + at.SENDER_RECORD
    parameters = M[flow + at.F_PARAMETERS]
    if (
        invoke(rules[at.L_ON_CONTROL], (A[at.W_ORIGIN], parameters, record, kind, sequence, first & WORD, echo, now))
        == at.RAISED
    ):
        raised(A, at.L_ON_CONTROL)
    elif M[flow + DONE]:
        ask(A, at.ASK_SETTLE, message, 0, 0, 0)
    else:
        heard(A, flow)
