"""Declares the engine's records of aggregation groups, whose messages switches sum or replicate
(`gradwire.sim.engine.core.aggregation`).
"""

from __future__ import annotations

from gradwire.jit.records.flows import Receiver
from gradwire.jit.records.header import StateRecord
from gradwire.jit.records.network import Switch
from gradwire.jit.records.table import Reference, Word


class AggregationNode(StateRecord, words=5):
    """A switch where messages of a group meet."""

    switch = Reference(lambda: Switch, "base of the switch")
    size = Word("messages that meet there")
    first_copy = Word("index of the first message for which it replicates packets from the one host")
    copies = Word("number of these messages")
    packet_states = Word("base of its state of each packet, FAN_STRIDE words each")


class AggregationGroup(AggregationNode, words=11):
    """An aggregation group; it begins with the node where all its messages meet."""

    is_outward = Word("1: from one host to many")
    host_packet_states = Word("base of the one host's state of each packet")
    stride = Word("words of one packet's state")
    started = Word("from one host: messages that have started there")
    cumulative = Word("all packets below it have arrived at the one host for all messages")
    is_over = Word("1: no packet of any message is left")


class Member(StateRecord, words=6):
    """A message of an aggregation group."""

    receiver = Reference(lambda: Receiver, "base of its receiver's record, 0 = none yet")
    leaf = Reference(lambda: AggregationNode, "base of the station where it first meets others, 0 = only where all do")
    spare = Word("packets that the station of all replicated for it, less those dropped there")
    next_copy = Word("index of the next one for which it replicates packets, in a circle")
    leaf_spare = Word("the same of its first station")
    leaf_next_copy = Word(
        "state of a packet: PACKET_ verdict 2 | mark 1 | unused 5 | contributors 20 | number of replications, from"
    )
