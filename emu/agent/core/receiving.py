"""Reads incoming datagrams in compiled code, checks them, and passes data and answers to the transports of their
messages.

A packet is checked before its bytes are written: its message, its length, and its source address. Python handles
anything else.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import address_of, data_of, length_of, receive, tos_at
from gradwire.emu.agent.core.layout import Agent, NicFlow, ReceivingFlow, TableEntry, receiver_of, sender_of
from gradwire.emu.agent.core.nic_schedule import flush_outgoing, occupy, serve, update
from gradwire.emu.agent.core.sending import answer
from gradwire.emu.agent.core.timers import ask, clock, fail
from gradwire.emu.agent.shared_words import HASH_MULTIPLIER
from gradwire.emu.native.calls import byte, copy, invoke, word
from gradwire.emu.wire.header import CE, DATA, ECHO, ECN, KIND, WORD
from gradwire.jit.compiled import njit
from gradwire.scenarios.wire import GRADWIRE

BATCHES = 8
"""Full batches read in a row before timers are served; our choice."""


@njit
def find(table: TableEntry, mask: int, number: int) -> int:
    """Return the index of a message in an open-addressed table of `mask` + 1 entries; 0 if missing."""
    slot = number * HASH_MULTIPLIER >> 7 & mask
    while True:
        entry = TableEntry(table, table.base + slot * TableEntry.WORDS)
        if entry.key == 0:
            return 0
        if entry.key == number + 1:
            return entry.index
        slot = slot + 1 & mask


@njit
def take(agent: Agent, file: int) -> int:
    """Receive the next datagrams of a file; return their number."""
    count = receive(agent.incoming, file)
    if count < 0:
        fail(agent, at.FAILED_CALL, agent.incoming.error)
        return 0
    return count


@njit
def read_data(agent: Agent) -> None:
    for _ in range(BATCHES):
        count = take(agent, agent.data_file)
        if count == 0:
            return
        now = clock(agent) * 1000
        for slot in range(count):
            take_data(agent, slot, now)
            if agent.failure:
                return
        if agent.answer_bytes:
            flush_outgoing(agent)
            occupy(agent, agent.answer_bytes, 1)
            agent.answer_bytes = 0
        deliver(agent)
        if count < agent.incoming.slots or agent.failure:
            return


@njit
def deliver(agent: Agent) -> None:
    flow = agent.first_complete
    agent.first_complete = 0
    while flow and agent.failure == 0:
        following = flow.next_complete
        ask(agent, at.ASK_DELIVER, flow.number, 0, 0, 0)
        flow = following


@njit
def complete(agent: Agent, flow: ReceivingFlow) -> None:
    """Append a completed message to the list for `deliver`."""
    flow.next_complete = 0
    if agent.first_complete:
        agent.last_complete.next_complete = flow
    else:
        agent.first_complete = flow
    agent.last_complete = flow


@njit
def take_data(agent: Agent, slot: int, now: int) -> None:
    incoming = agent.incoming
    if length_of(incoming, slot) < GRADWIRE:  # the rest of the slot is from an earlier datagram
        agent.invalid_count += 1
        return
    data = data_of(incoming, slot)
    message, second = word(data) >> 32 & WORD, word(data + 8)
    index = find(agent.receivers, agent.receivers_mask, message)
    if index == 0:
        index = ask(agent, at.ASK_RECEIVER, message, 0, 0, 0)
        if index == 0:
            agent.invalid_count += 1
            return
    flow = ReceivingFlow(agent, index)
    receiver = receiver_of(flow)
    length, sequence, flags = second >> 48 & 0xFFFF, second >> 16 & WORD, second & 0xFFFF
    was_done = receiver.is_done
    if not is_data(agent, flow, slot, length, sequence, flags):
        ask(agent, at.ASK_NO_DATA, message, slot, now, 0)
        if receiver.is_done and was_done == 0:
            complete(agent, flow)
        return
    ce = 1 if byte(tos_at(incoming, slot)) & ECN == CE else 0
    flow.marked += ce
    if was_done == 0 and length:  # a duplicate has the same bytes
        copy(flow.buffer + sequence * flow.payload, data + GRADWIRE + flow.fill, length)
    reply = invoke(flow.rules[at.ON_DATA], (agent.origin, flow.parameters, receiver.base, sequence, length, ce, now))
    if reply == at.RAISED:
        fail(agent, at.FAILED_RULE, at.ON_DATA)
        return
    if reply:
        answer(agent, flow, reply, sequence, slot)
    if receiver.is_done and was_done == 0:
        complete(agent, flow)


@njit
def is_data(agent: Agent, flow: ReceivingFlow, slot: int, length: int, sequence: int, flags: int) -> bool:
    """Return True if a datagram is a valid data packet of the message it names."""
    if sequence >= flow.packets or flags & KIND != DATA:
        return False
    if length != min(flow.payload, flow.nbytes - sequence * flow.payload):
        return False
    incoming = agent.incoming
    return length_of(incoming, slot) >= GRADWIRE + flow.fill + length and address_of(incoming, slot) == flow.peer


@njit
def read_answers(agent: Agent, file: int) -> None:
    for _ in range(BATCHES):
        count = take(agent, file)
        now = clock(agent) * 1000
        for slot in range(count):
            take_answer(agent, slot, now)
            if agent.failure:
                return
        if count < agent.incoming.slots or agent.failure:
            break
    serve(agent)


@njit
def take_answer(agent: Agent, slot: int, now: int) -> None:
    incoming = agent.incoming
    if length_of(incoming, slot) < GRADWIRE:
        agent.invalid_count += 1
        return
    data = data_of(incoming, slot)
    first, second = word(data), word(data + 8)
    message = first >> 32 & WORD
    flow = NicFlow(agent, find(agent.senders, agent.senders_mask, message))
    if not flow:
        return
    if address_of(incoming, slot) != flow.peer:
        agent.invalid_count += 1
        return
    sequence, flags = second >> 16 & WORD, second & 0xFFFF
    kind = flags & KIND
    if flow.passed_kinds >> kind & 1 == 0 or sequence >= flow.packets:
        if ask(agent, at.ASK_SPECIAL_ANSWER, message, slot, now, 0) == 0:
            agent.invalid_count += 1
        return
    sender, echo = sender_of(flow), 1 if flags & ECHO else 0
    result = invoke(
        flow.rules[at.ON_CONTROL], (agent.origin, flow.parameters, sender.base, kind, sequence, first & WORD, echo, now)
    )
    if result == at.RAISED:
        fail(agent, at.FAILED_RULE, at.ON_CONTROL)
    elif sender.is_done:
        ask(agent, at.ASK_SETTLE, message, 0, 0, 0)
    else:
        update(agent, flow)
