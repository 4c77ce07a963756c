"""Compiled transmission order of the NIC (see `gradwire.emu.agent.nic`).

A flow that may have data is in the list of its class, or in its group, which is in the list; or it is set aside until
its pace allows the next packet. The oldest member of a group sends.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.datagrams import flush, has_room
from gradwire.emu.agent.core.sending import transmit
from gradwire.emu.agent.core.timers import clock, memory, raised, scheduled, set_timer_of
from gradwire.emu.native.calls import invoke, words_at
from gradwire.emu.native.heap import pop, push
from gradwire.jit import layout as words_of
from gradwire.jit.compiled import njit

DONE, TIMER, SENT, GAP = (
    at.SENDER_RECORD + word for word in (words_of.S_DONE, words_of.S_TIMER, words_of.S_SENT, words_of.S_GAP)
)
PAIR_NEXT, PAIR_GAP = words_of.PAIR_NEXT, words_of.PAIR_GAP
EXACT = 1000
"""Timer resolution in picoseconds."""


@njit
def enlist(A, M, turn):
    """Append a flow or a group to the list of its class."""
    M[turn + at.F_LISTED] = at.LISTED
    M[turn + at.F_NEXT] = 0
    ready = at.W_READY + 2 * min(M[turn + at.F_PRIORITY], A[at.W_LAST_CLASS])
    if A[ready]:
        M[A[ready + 1] + at.F_NEXT] = turn
    else:
        A[ready] = turn
    A[ready + 1] = turn


@njit
def drop_first(A, M, ready):
    """Remove the first entry of the list of a class."""
    A[ready] = M[A[ready] + at.F_NEXT]


@njit
def begin(A, flow):
    """Start a flow that has, or may have, data to send."""
    M = memory(A)
    if M[flow + at.F_LISTED] != at.UNLISTED or M[flow + DONE]:
        return
    M[flow + at.F_SINCE] = scheduled(A) * 1000
    group = M[flow + at.F_GROUP]
    if group == 0:
        enlist(A, M, flow)
        return
    M[flow + at.F_LISTED] = at.LISTED
    join(M, group, flow)
    if M[group + at.F_LISTED] == at.UNLISTED:
        M[group + at.F_SINCE] = M[flow + at.F_SINCE]
        enlist(A, M, group)


@njit
def join(M, group, flow):
    """Insert a flow into its group by age."""
    number, last = M[flow + at.F_NUMBER], M[group + at.G_LAST]
    M[flow + at.F_BEHIND] = 0
    if M[group + at.G_FIRST] == 0:
        M[group + at.G_FIRST] = flow
        M[group + at.G_LAST] = flow
    elif M[last + at.F_NUMBER] < number:
        M[last + at.F_BEHIND] = flow
        M[group + at.G_LAST] = flow
    elif number < M[M[group + at.G_FIRST] + at.F_NUMBER]:
        M[flow + at.F_BEHIND] = M[group + at.G_FIRST]
        M[group + at.G_FIRST] = flow
    else:
        here = M[group + at.G_FIRST]
        while M[M[here + at.F_BEHIND] + at.F_NUMBER] < number:
            here = M[here + at.F_BEHIND]
        M[flow + at.F_BEHIND] = M[here + at.F_BEHIND]
        M[here + at.F_BEHIND] = flow


@njit
def arm(A, flow):
    """Set a timer for the time that a flow's rules request; a later request does not move an earlier timer."""
    M = memory(A)
    wanted = M[flow + TIMER]
    if wanted == 0:
        return
    if M[flow + at.F_ARMED] and M[flow + at.F_ARMED_AT] * 1000 <= wanted + 999:
        return
    M[flow + at.F_ARMED_AT] = -(-wanted // 1000)
    M[flow + at.F_ARMED] = set_timer_of(A, M[flow + at.F_ARMED_AT], flow)


@njit
def heard(A, flow):
    """Update a flow after a change of its timer or its data to send."""
    arm(A, flow)
    begin(A, flow)


@njit
def went_off(A, flow):
    """Handle the timer of a flow."""
    M = memory(A)
    M[flow + at.F_ARMED] = 0
    wanted = M[flow + TIMER]
    if M[flow + DONE] or wanted == 0:
        return
    now = clock(A) * 1000
    if wanted > now:
        arm(A, flow)
        return
    M[flow + TIMER] = 0
    rules = words_at(A[at.W_ORIGIN] + 8 * M[flow + at.F_RULES])
    got = invoke(rules[at.L_ON_TIMER], (A[at.W_ORIGIN], M[flow + at.F_PARAMETERS], flow + at.SENDER_RECORD, now))
    if got == at.RAISED:
        raised(A, at.L_ON_TIMER)
        return
    begin(A, flow)
    arm(A, flow)
    serve(A)


@njit
def took(A, nbytes, count):
    """Account for control packets, sent now or as soon as the line is free."""
    A[at.W_BUSY] = max(A[at.W_BUSY], clock(A) * 1000) + count * line_time(A, nbytes)


@njit
def line_time(A, nbytes):
    """Return the picoseconds that `nbytes` take on the line."""
    return (nbytes * A[at.W_LINE] + 0xFFFF) >> 16


@njit
def serve(A):
    """Send what is due, and schedule the rest."""
    if A[at.W_SERVING]:  # re-entered: a flow was stopped during its pull
        return
    A[at.W_SERVING] = 1
    A[at.W_AT_CARD] = 0
    send(A, clock(A) * 1000)
    if A[at.W_BROKEN] == 0:
        let_go(A)
    if A[at.W_BROKEN] == 0:
        wake = next_slot(A)
        if wake:  # even if it is past: arrivals come first
            wake_for(A, wake)
    A[at.W_SERVING] = 0


@njit
def let_go(A):
    """Pass all datagrams to the kernel."""
    U = words_at(A[at.W_ORIGIN] + 8 * A[at.W_OUT])
    if flush(U):
        A[at.W_ERRNO] = U[at.O_ERRNO]
        A[at.W_BROKEN] = at.BROKEN_CALL


@njit
def next_slot(A):
    """Return the time of the next possible transmission; 0: not before an update."""
    if A[at.W_AT_CARD]:
        return 0
    free = max(A[at.W_BUSY] - (A[at.W_AHEAD] >> 1), 1)
    for number in range(A[at.W_LAST_CLASS] + 1):
        if A[at.W_READY + 2 * number]:
            return free
    if A[at.W_PACED_COUNT]:
        return max(free, words_at(A[at.W_PACED])[0])
    return 0


@njit
def wake_for(A, when):
    """Set a timer to continue no later than `when`."""
    if A[at.W_WAKE] and A[at.W_WAKE_AT] <= when:
        return
    A[at.W_WAKE_AT] = when
    A[at.W_WAKE] = set_timer_of(A, -(-when // 1000), 0)


@njit
def first_ready(A):
    """Return the index of the list of the best nonempty class, or -1."""
    for number in range(A[at.W_LAST_CLASS] + 1):
        if A[at.W_READY + 2 * number]:
            return at.W_READY + 2 * number
    return -1


@njit
def send(A, now):
    """Make all transmissions that begin up to now, or up to the horizon."""
    M = memory(A)
    horizon = now + A[at.W_AHEAD]
    while A[at.W_BROKEN] == 0:
        if A[at.W_CARD_FILE] and at_card(A, M, now):
            return
        # timers have nanosecond resolution: a packet due just before now keeps its time
        slot = A[at.W_BUSY] if A[at.W_BUSY] + EXACT > now else now
        if slot > horizon:
            return
        take_up(A, M, slot)
        ready = first_ready(A)
        if ready < 0:
            return
        turn = A[ready]
        is_group = M[turn + at.F_IS_GROUP]
        pace_at = pace_of(M, turn)
        pace = M[pace_at]
        if pace > slot:
            drop_first(A, M, ready)
            put_aside(A, M, turn, pace)
            continue
        # likewise a packet paced for just before now, or every packet would lose a nanosecond
        if slot - EXACT < pace:
            slot = max(pace, A[at.W_BUSY])
        flow = oldest(A, M, turn, slot) if is_group else (turn if asked(A, M, turn, slot) else 0)
        if A[at.W_BROKEN]:
            return
        if flow == 0:
            drop_first(A, M, ready)
            M[turn + at.F_LISTED] = at.UNLISTED
            continue
        drop_first(A, M, ready)
        enlist(A, M, turn)
        M[flow + SENT] += 1
        nbytes = transmit(A, M, flow, A[at.W_PULLED])
        A[at.W_BUSY] = slot + line_time(A, nbytes)
        if A[at.W_SHARED] and A[at.W_PULLED] < words_of.PULL_PROBE:
            A[at.W_CARD_FILE] = M[flow + at.F_FILE]
            A[at.W_CARD_TURN] = turn
            A[at.W_CARD_BYTES] = nbytes
            A[at.W_CARD_SINCE] = slot
        gap = gap_of(M, turn)
        if gap:
            # make up for lateness on the wall clock, within bounds
            due = max(pace, M[turn + at.F_SINCE], slot - A[at.W_MAKE_UP])
            M[pace_at] = min(due, slot) + ((nbytes * gap + 0xFFFF) >> 16)
        arm(A, flow)


@njit
def pace_of(M, turn):
    """Return the index of the word with the next allowed time of a flow or group."""
    return M[turn + at.G_PAIR] + PAIR_NEXT if M[turn + at.F_IS_GROUP] else turn + at.F_PACE


@njit
def gap_of(M, turn):
    """Return the gap of a flow or group; 0: line rate."""
    return M[M[turn + at.G_PAIR] + PAIR_GAP] if M[turn + at.F_IS_GROUP] else M[turn + GAP]


@njit
def at_card(A, M, now):
    """Return True if the last packet waits in the NIC behind those of the kernel's TCP. Then the line is not free,
    whatever the schedule says, and the next packet is still open; its departure is an event (`has_left`). A packet that
    has waited begins at its departure: line and pace count from then on, as in the simulator, whose hosts take a packet
    from a flow when the line is free."""
    if not has_room(words_at(A[at.W_ORIGIN] + 8 * A[at.W_OUT]), A[at.W_CARD_FILE], 0):
        A[at.W_AT_CARD] = 1
        return True
    A[at.W_CARD_FILE] = 0
    if now > A[at.W_CARD_SINCE] + EXACT:
        turn, nbytes = A[at.W_CARD_TURN], A[at.W_CARD_BYTES]
        A[at.W_BUSY] = max(A[at.W_BUSY], now + line_time(A, nbytes))
        gap = gap_of(M, turn)
        if gap:
            M[pace_of(M, turn)] = max(M[pace_of(M, turn)], now + ((nbytes * gap + 0xFFFF) >> 16))
    return False


@njit
def has_left(A):
    """Continue after a packet has left the NIC."""
    asked_for = A[at.W_AT_CARD]
    if A[at.W_CARD_FILE] and not at_card(A, memory(A), clock(A) * 1000) and asked_for:
        serve(A)


@njit
def take_up(A, M, slot):
    """Enlist flows and groups that may continue at `slot`."""
    H = words_at(A[at.W_PACED])
    while A[at.W_PACED_COUNT] and H[0] <= slot:
        turn = H[2]
        pop(H, A[at.W_PACED_COUNT])
        A[at.W_PACED_COUNT] -= 1
        enlist(A, M, turn)


@njit
def put_aside(A, M, turn, pace):
    """Set a flow or group aside until its pace allows the next packet."""
    M[turn + at.F_LISTED] = at.PACED
    oldest_member = M[turn + at.G_FIRST] if M[turn + at.F_IS_GROUP] else turn
    push(words_at(A[at.W_PACED]), A[at.W_PACED_COUNT], pace, M[oldest_member + at.F_NUMBER], turn)
    A[at.W_PACED_COUNT] += 1


@njit
def asked(A, M, flow, slot):
    """Pull from a flow; return True if it has a packet to send now (`W_PULLED`)."""
    if M[flow + DONE]:
        return False
    rules = words_at(A[at.W_ORIGIN] + 8 * M[flow + at.F_RULES])
    pulled = invoke(rules[at.L_PULL], (A[at.W_ORIGIN], M[flow + at.F_PARAMETERS], flow + at.SENDER_RECORD, slot))
    if pulled == at.RAISED:
        raised(A, at.L_PULL)
        return False
    A[at.W_PULLED] = pulled
    if pulled >= 0:
        return True
    arm(A, flow)
    return False


@njit
def oldest(A, M, group, slot):
    """Return the first flow of a group with a packet to send, or 0; those before it leave the group."""
    while M[group + at.G_FIRST] and A[at.W_BROKEN] == 0:
        flow = M[group + at.G_FIRST]
        if asked(A, M, flow, slot):
            return flow
        M[flow + at.F_LISTED] = at.UNLISTED
        M[group + at.G_FIRST] = M[flow + at.F_BEHIND]
    return 0
