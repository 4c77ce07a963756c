"""The compiled NIC of a testbed host picks the next flow by class, turn and pace, and sends its packet.

A flow that may have data is in the list of its class, or in its group, which is in the list; or it waits until its pace
allows the next packet. The oldest member of a group sends.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import flush, has_space
from gradwire.emu.agent.core.layout import Agent, NicFlow, NicGroup, Turn, ready_list, sender_of
from gradwire.emu.agent.core.sending import transmit
from gradwire.emu.agent.core.timers import clock, fail, scheduled, set_timer_of
from gradwire.emu.native.calls import invoke
from gradwire.emu.native.heap import pop, push
from gradwire.jit.compiled import njit
from gradwire.jit.records import constants as words_of

RESOLUTION = 1000
"""Timer resolution in picoseconds."""


# --- flows and groups as turns ----------------------------------------------------------------------------------------


@njit
def turn_of(flow: NicFlow | NicGroup) -> Turn:
    return Turn(flow, flow.base)


@njit
def flow_of(turn: Turn) -> NicFlow:
    return NicFlow(turn, turn.base)


@njit
def group_of(turn: Turn) -> NicGroup:
    return NicGroup(turn, turn.base)


@njit
def earliest_start(turn: Turn) -> int:
    """Return the time before which the pace of a flow or group allows no packet."""
    return group_of(turn).pair.next_start if turn.is_group else flow_of(turn).earliest_start


@njit
def set_earliest_start(turn: Turn, time: int) -> None:
    """Set the time before which no packet of a flow or group begins."""
    if turn.is_group:
        group_of(turn).pair.next_start = time
    else:
        flow_of(turn).earliest_start = time


@njit
def gap_of(turn: Turn) -> int:
    """Return the gap of a flow or group; 0: line rate."""
    return group_of(turn).pair.gap if turn.is_group else sender_of(flow_of(turn)).gap


# --- lists and groups -------------------------------------------------------------------------------------------------


@njit
def enlist(agent: Agent, turn: Turn) -> None:
    """Append a flow or a group to the list of its class."""
    turn.list_state = at.LISTED
    turn.next = 0
    ready = ready_list(agent, min(turn.priority, agent.last_class))
    if ready.first:
        ready.last.next = turn
    else:
        ready.first = turn
    ready.last = turn


@njit
def begin(agent: Agent, flow: NicFlow) -> None:
    """Start a flow that has, or may have, data to send."""
    if flow.list_state != at.UNLISTED or sender_of(flow).is_done:
        return
    flow.ready_since = scheduled(agent) * 1000
    group = flow.group
    if not group:
        enlist(agent, turn_of(flow))
        return
    flow.list_state = at.LISTED
    join(group, flow)
    if group.list_state == at.UNLISTED:
        group.ready_since = flow.ready_since
        enlist(agent, turn_of(group))


@njit
def join(group: NicGroup, flow: NicFlow) -> None:
    """Insert a flow into its group by age."""
    flow.next_member = 0
    if not group.first:
        group.first = flow
        group.last = flow
    elif group.last.number < flow.number:
        group.last.next_member = flow
        group.last = flow
    elif flow.number < group.first.number:
        flow.next_member = group.first
        group.first = flow
    else:
        older = group.first
        while older.next_member.number < flow.number:
            older = older.next_member
        flow.next_member = older.next_member
        older.next_member = flow


# --- timers -----------------------------------------------------------------------------------------------------------


@njit
def arm(agent: Agent, flow: NicFlow) -> None:
    """Set a timer for the time that a flow's rules request; a later request does not move an earlier timer."""
    timer = sender_of(flow).timer
    if timer == 0:
        return
    if flow.timer_number and flow.timer_ns * 1000 <= timer + 999:
        return
    flow.timer_ns = -(-timer // 1000)
    flow.timer_number = set_timer_of(agent, flow.timer_ns, flow)


@njit
def update(agent: Agent, flow: NicFlow) -> None:
    """Update a flow after a change of its timer or its data to send."""
    arm(agent, flow)
    begin(agent, flow)


@njit
def fire_flow_timer(agent: Agent, flow: NicFlow) -> None:
    flow.timer_number = 0
    sender = sender_of(flow)
    if sender.is_done or sender.timer == 0:
        return
    now = clock(agent) * 1000
    if sender.timer > now:
        arm(agent, flow)
        return
    sender.timer = 0
    if invoke(flow.rules[at.ON_TIMER], (agent.origin, flow.parameters, sender.base, now)) == at.RAISED:
        fail(agent, at.FAILED_RULE, at.ON_TIMER)
        return
    begin(agent, flow)
    arm(agent, flow)
    serve(agent)


# --- the line ---------------------------------------------------------------------------------------------------------


@njit
def occupy(agent: Agent, nbytes: int, count: int) -> None:
    """Account for control packets, sent now or as soon as the line is free."""
    agent.busy_until = max(agent.busy_until, clock(agent) * 1000) + count * line_time(agent, nbytes)


@njit
def line_time(agent: Agent, nbytes: int) -> int:
    return (nbytes * agent.ps_per_byte + 0xFFFF) >> 16


@njit
def serve(agent: Agent) -> None:
    """Send what is due, and schedule the rest."""
    if agent.is_serving:  # re-entered: a flow was stopped during its pull
        return
    agent.is_serving = 1
    agent.is_nic_full = 0
    send(agent, clock(agent) * 1000)
    if agent.failure == 0:
        flush_outgoing(agent)
    if agent.failure == 0:
        time = next_slot(agent)
        if time and not (agent.wake_number and agent.wake_time <= time):  # even if it is past: arrivals come first
            agent.wake_time = time
            agent.wake_number = set_timer_of(agent, -(-time // 1000), NicFlow(agent, 0))
    agent.is_serving = 0


@njit
def flush_outgoing(agent: Agent) -> None:
    outgoing = agent.outgoing
    if flush(outgoing):
        fail(agent, at.FAILED_CALL, outgoing.error)


@njit
def next_slot(agent: Agent) -> int:
    """Return the time of the next possible transmission; 0: not before an update."""
    if agent.is_nic_full:
        return 0
    free = max(agent.busy_until - (agent.ahead >> 1), 1)
    if best_class(agent) >= 0:
        return free
    if agent.paced_count:
        return max(free, agent.paced.time)
    return 0


@njit
def best_class(agent: Agent) -> int:
    """Return the best class whose list is not empty, or -1."""
    for number in range(agent.last_class + 1):
        if ready_list(agent, number).first:
            return number
    return -1


@njit
def send(agent: Agent, now: int) -> None:
    """Make all transmissions that begin up to now, or up to the horizon."""
    horizon = now + agent.ahead
    while agent.failure == 0:
        if agent.nic_file and is_in_nic(agent, now):
            return
        # timers have nanosecond resolution: a packet due just before now keeps its time
        slot = agent.busy_until if agent.busy_until + RESOLUTION > now else now
        if slot > horizon:
            return
        resume_paced(agent, slot)
        number = best_class(agent)
        if number < 0:
            return
        ready = ready_list(agent, number)
        turn = ready.first
        pace = earliest_start(turn)
        if pace > slot:
            ready.first = turn.next
            set_aside(agent, turn, pace)
            continue
        # likewise a packet paced for just before now, or every packet would lose a nanosecond
        if slot - RESOLUTION < pace:
            slot = max(pace, agent.busy_until)
        flow = flow_to_send(agent, turn, slot)
        if agent.failure:
            return
        ready.first = turn.next
        if not flow:
            turn.list_state = at.UNLISTED
            continue
        enlist(agent, turn)
        sender_of(flow).sent += 1
        nbytes = transmit(agent, flow, agent.pulled)
        agent.busy_until = slot + line_time(agent, nbytes)
        if agent.shares_nic and agent.pulled < words_of.PULL_PROBE:
            agent.nic_file = flow.file
            agent.nic_turn = turn
            agent.nic_bytes = nbytes
            agent.nic_since = slot
        gap = gap_of(turn)
        if gap:
            # make up for lateness on the wall clock, within bounds
            due = max(pace, turn.ready_since, slot - agent.make_up)
            set_earliest_start(turn, min(due, slot) + ((nbytes * gap + 0xFFFF) >> 16))
        arm(agent, flow)


@njit
def is_in_nic(agent: Agent, now: int) -> bool:
    """Return True if the last packet waits in the NIC behind those of the kernel's TCP. Then the line is not free,
    whatever the schedule says, and the next packet is still open; its departure is an event
    (`continue_after_departure`). A packet that has waited begins at its departure: line and pace count from then on, as
    in the simulator, whose hosts take a packet from a flow when the line is free."""
    if not has_space(agent.outgoing, agent.nic_file, 0):
        agent.is_nic_full = 1
        return True
    agent.nic_file = 0
    if now > agent.nic_since + RESOLUTION:
        turn, nbytes = agent.nic_turn, agent.nic_bytes
        agent.busy_until = max(agent.busy_until, now + line_time(agent, nbytes))
        gap = gap_of(turn)
        if gap:
            set_earliest_start(turn, max(earliest_start(turn), now + ((nbytes * gap + 0xFFFF) >> 16)))
    return False


@njit
def continue_after_departure(agent: Agent) -> None:
    was_full = agent.is_nic_full
    if agent.nic_file and not is_in_nic(agent, clock(agent) * 1000) and was_full:
        serve(agent)


@njit
def resume_paced(agent: Agent, slot: int) -> None:
    """Enlist flows and groups that may continue at `slot`."""
    while agent.paced_count and agent.paced.time <= slot:
        turn = agent.paced.turn
        pop(agent.paced, agent.paced_count)
        agent.paced_count -= 1
        enlist(agent, turn)


@njit
def set_aside(agent: Agent, turn: Turn, pace: int) -> None:
    """Let a flow or group wait until its pace allows the next packet."""
    turn.list_state = at.PACED
    oldest = group_of(turn).first if turn.is_group else flow_of(turn)
    push(agent.paced, agent.paced_count, pace, oldest.number, turn.base)
    agent.paced_count += 1


# --- packets ----------------------------------------------------------------------------------------------------------


@njit
def pull_from(agent: Agent, flow: NicFlow, slot: int) -> bool:
    """Pull from a flow; return True if it has a packet to send now (`pulled`)."""
    sender = sender_of(flow)
    if sender.is_done:
        return False
    pulled = invoke(flow.rules[at.PULL], (agent.origin, flow.parameters, sender.base, slot))
    if pulled == at.RAISED:
        fail(agent, at.FAILED_RULE, at.PULL)
        return False
    agent.pulled = pulled
    if pulled >= 0:
        return True
    arm(agent, flow)
    return False


@njit
def flow_to_send(agent: Agent, turn: Turn, slot: int) -> NicFlow:
    """Pull from a flow, or from the members of a group; return the flow with a packet to send, or none (0)."""
    if turn.is_group:
        return pull_from_group(agent, group_of(turn), slot)
    flow = flow_of(turn)
    return flow if pull_from(agent, flow, slot) else NicFlow(agent, 0)


@njit
def pull_from_group(agent: Agent, group: NicGroup, slot: int) -> NicFlow:
    """Return the first flow of a group with a packet to send, or none (0); those before it leave the group."""
    while group.first and agent.failure == 0:
        flow = group.first
        if pull_from(agent, flow, slot):
            return flow
        flow.list_state = at.UNLISTED
        group.first = flow.next_member
    return NicFlow(agent, 0)
