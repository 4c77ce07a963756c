"""Writes data packets, probes and answers as datagrams into the outgoing batch, when the NIC schedule or the receiver
asks."""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import add, name_of
from gradwire.emu.agent.core.layout import Agent, NicFlow, ReceivingFlow, sender_of
from gradwire.emu.agent.core.timers import ask, fail
from gradwire.emu.wire.header import ACK, DATA, ECHO, IMPORTANT, WORD
from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import PULL_PROBE
from gradwire.jit.records.replies import reply_argument, reply_echo, reply_kind, reply_size
from gradwire.protocols.transports.base import IMPORTANT_FLAG, bit
from gradwire.scenarios.wire import MIN_FRAME, UDP_OVERHEAD


@njit
def append_datagram(
    agent: Agent, file: int, name: int, tos: int, first: int, second: int, payload: int, length: int, fill: int
) -> None:
    outgoing = agent.outgoing
    if add(outgoing, file, name, tos, first, second, payload, length, fill):
        fail(agent, at.FAILED_CALL, outgoing.error)


@njit
def is_important(flow: NicFlow, sequence: int) -> int:
    sender = sender_of(flow)
    return sender.tags if sender.tags <= 1 else bit(sender.tag_bits, sequence)


@njit
def transmit(agent: Agent, flow: NicFlow, pulled: int) -> int:
    """Send a data packet or a Probe as pulled from the rules; return its bytes on the link."""
    if pulled >= PULL_PROBE:
        return ask(agent, at.ASK_PROBE, flow.number, pulled - PULL_PROBE, 0, 0)
    sequence = pulled & (IMPORTANT_FLAG - 1)
    if sequence >= flow.packets:
        fail(agent, at.FAILED_PULL, sequence)
        return 0
    offset = sequence * flow.payload
    length = min(flow.payload, flow.nbytes - offset)
    important = 1 if pulled & IMPORTANT_FLAG else is_important(flow, sequence)
    tos = flow.important_tos if important else flow.tos
    flags = IMPORTANT if important else DATA
    first = flow.number << 32 | offset & WORD
    second = length << 48 | sequence << 16 | flags
    append_datagram(agent, flow.file, flow.destination, tos, first, second, flow.content + offset, length, flow.fill)
    return max(length + flow.fill + UDP_OVERHEAD, MIN_FRAME)


@njit
def answer(agent: Agent, flow: ReceivingFlow, reply: int, sequence: int, slot: int) -> None:
    """Send the rules' answer to the packet in a slot."""
    kind = reply_kind(reply)
    if flow.uses_side_channel and kind != ACK:
        ask(agent, at.ASK_ANSWER, flow.number, reply, sequence, slot)
        return
    size = reply_size(reply)
    if size == 0:
        size = flow.control_bytes
    fill = max(size, MIN_FRAME) - UDP_OVERHEAD
    flags = kind | (ECHO if reply_echo(reply) else 0) | flow.control_flags
    first = flow.number << 32 | reply_argument(reply)
    name = name_of(agent.incoming, slot)
    append_datagram(agent, agent.data_file, name, flow.control_tos, first, sequence << 16 | flags, 0, 0, fill)
    agent.answer_bytes += UDP_OVERHEAD + fill
