"""What happens at one picosecond happens in an order that can be said beforehand (`sim/README.md`, "Rules that decide
ties"): here in the smallest networks in which it shows, worked out by hand, to the picosecond. Where a rule was broken, in the
engine and in the oracle alike, random cases would agree; and they hardly ever make two ports free at one time.

Cables of 10 Gbps and 1 us: a byte takes 800 ps. A packet of 1000 bytes has 1066 on the wire, one of 100 has 166. Packets that
wait are told of by pause frames: above 100 bytes, so that one packet of 166 stops its class and one of 67 does not, and no
longer when none waits. So what frames say, and when, tells in which order packets left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx
import pytest
from tie_cases import first_come, seed_for

from gradwire.jit.counter_rng import TIE_DRAWS, key_of, tie_break
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import PAUSE
from gradwire.topology import LinkSpec, Network, from_networkx, star

US = 10**6
LARGE, SMALL, FRAME = 1066 * 800, 166 * 800, 60 * 800
CABLE = LinkSpec(10**10, US)
DATA = "data"
NONE, FIRST, SECOND = 0, 1, 2  # classes that a frame stops


def engine(case: Case) -> Outcome:
    """The engine's outcome, which must be the oracle's too, and with two threads the same."""
    outcome = run_engine(case)
    assert first_difference(outcome, run_oracle(case)) == ""
    assert first_difference(run_engine(case, threads=2, prepare=together), outcome) == ""
    return outcome


def together(fabric: Any) -> None:
    fabric.advance.choice.fix(alone=False)


def paused(
    network: Network, letters: list[MessageSpec], seed: int = 1, changes: Sequence[NetworkChange] = ()
) -> Outcome:
    """With flow control; transport and balancer are those of the property test, so that they share an engine, and so does what changes."""
    dctcp = Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})
    table = Switch.model_validate({"queues": 2, "pfc": True, "pfc_threshold": "100B"})
    return engine(Case(network, [dctcp], letters, table, "spray_random", seed, changes=changes))


def seen(outcome: Outcome, link: int, time: int) -> list[tuple[int, Any]]:
    """What starts on a link in the microsecond from `time` on: how much later, and which classes a frame stops."""
    return [
        (each.start - time, each.packet.argument if each.packet.kind == PAUSE else DATA)
        for each in outcome.transmissions
        if each.link == link and time <= each.start < time + US
    ]


# --- arrivals ---------------------------------------------------------------------------------------------------------


def incast(hosts: int, seed: int = 1) -> list[int]:
    """Whose packet leaves the switch of a star first, second, ... when those of all hosts but the last reach it at one time,
    for the last."""
    constant = UserTransport.model_validate({"kind": "constant_rate:ConstantRate", "payload": "1000B"})
    letters = [MessageSpec(0, host, hosts - 1, 1000) for host in range(hosts - 1)]
    outcome = engine(Case(star(hosts, CABLE), [constant], letters, Switch.model_validate({"buffer": "1MB"}), seed=seed))
    return [each.packet.flow for each in outcome.transmissions if each.link == 2 * hosts - 1]


MET = 1058 * 800 + US
"""When packets of 1000 bytes without acknowledgements that start at 0 reach the switch of a star."""


@pytest.mark.parametrize("hosts", [6, 16, 41])
def test_simultaneous_arrivals_are_ordered_by_hash(hosts):
    """The cases include few packets, and enough for another sorting algorithm to take over."""
    order = [link // 2 for link in first_come(range(0, 2 * hosts - 2, 2), MET)]
    assert order not in (list(range(hosts - 1)), list(range(hosts - 1))[::-1])
    assert incast(hosts) == order


def test_equal_tie_break_hashes_are_ordered_by_link_number():
    """Two links have equal hashes one time in 2^20. With this seed, at this time, those of hosts 1 and 2 are equal."""
    hashes = [tie_break.py_func(key_of(233_869, TIE_DRAWS, link), MET) for link in (0, 2, 4)]
    assert hashes[1] == hashes[2] < hashes[0]
    assert incast(4, 233_869) == [1, 2, 0]


# --- ports ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second_first", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("own", ["idle", "ends", "waits"])
def test_ports_idle_at_equal_time_send_in_order_of_link_number(own, place, second_first):
    """Hosts 3 and 4 send a large packet each, to two of the first three hosts. The third of these, the sender, sends
    a small packet to both in one class each, and is paused in both classes. Then both ports become idle at once: both
    small packets leave, the one to the host of the lower number first.

    The port to the sender is idle in one case: it sends a frame that only the other class is to pause, and when that
    frame has left, one that none is. In another case a packet of host 5 has left by it at that very time: if its turn
    comes before the last of the others', the frames are the same, and otherwise one frame reports both. In the last
    case another packet of host 5 waits there: if its turn is the first, that packet leaves before there is anything
    to report."""
    busy = [host for host in range(3) if host != place]
    reached = busy[::-1] if second_first else busy
    free = LARGE + US + LARGE
    letters = [MessageSpec(0, host, dst, 1000) for host, dst in zip((3, 4), busy, strict=True)]
    letters += [MessageSpec(LARGE, place, dst, 100, priority=c) for c, dst in enumerate(reached)]
    size = {"idle": None, "ends": 100, "waits": 200}[own]
    if size:
        begin = free - US - 2 * (size + 66) * 800
        letters += [MessageSpec(begin, 5, place, size), *[MessageSpec(begin, 5, place, 1)] * (own == "waits")]
    down = 2 * place + 1
    left = FIRST if second_first else SECOND
    one_by_one = [(0, left), (FRAME, NONE)]
    wanted: list[tuple[int, Any]] = {
        "idle": [one_by_one] * 3,
        "ends": [one_by_one, one_by_one, [(0, NONE)]],
        "waits": [[(0, DATA), (67 * 800, NONE)], [*one_by_one, (2 * FRAME, DATA)], [(0, NONE), (FRAME, DATA)]],
    }[own][place]
    outcome = paused(star(6, CABLE), letters)
    assert seen(outcome, down, free) == wanted
    before = [each for each in seen(outcome, down, free - US) if each[0] < US and each[1] != DATA]
    assert before == [(US - LARGE + SMALL, FIRST), (US - LARGE + 2 * SMALL, FIRST | SECOND)]


# --- pause frames -----------------------------------------------------------------------------------------------------


def behind_two(sender_last: bool) -> Network:
    """Hosts `sender` and `other` on a switch; two more switches on that, `left` and `right`, each with a host that a slow cable
    leads to (`far_left`, ...) and one that keeps this cable busy. The cable of the sender comes before those between
    switches, or after them."""
    graph = networkx.Graph()
    between = [("middle", "left"), ("middle", "right")]
    sender = [("sender", "middle")]
    graph.add_edges_from([*between, *sender] if sender_last else [*sender, *between])
    graph.add_edge("other", "middle")
    for side in ("left", "right"):
        graph.add_edge(f"far_{side}", side, rate=10**9)
        graph.add_edge(f"busy_{side}", side)
    return from_networkx(graph, CABLE)


def link(network: Network, src: str, dst: str) -> int:
    ends = [network.index[src], network.index[dst]]
    return next(n for n in range(network.link_count) if [network.link_src[n], network.link_dst[n]] == ends)


GO_ON = LARGE + US + 10 * LARGE + FRAME + US
"""When a frame is in the middle that says that the slow cable is free, and what waited there has left."""


def stopped(network: Network, sides: dict[str, int]) -> list[MessageSpec]:
    """On every side a packet of the sender waits for the slow cable until a large one has left; so the middle is told to stop its
    class, and another one of that class waits there."""
    at = network.index
    letters = [MessageSpec(0, at[f"busy_{side}"], at[f"far_{side}"], 1000) for side in sides]
    return letters + [
        MessageSpec(begin * US, at["sender"], at[f"far_{side}"], 100, priority=c)
        for begin in (1, 5)
        for side, c in sides.items()
    ]


@pytest.mark.parametrize("sender_last", [False, True])
@pytest.mark.parametrize("first", ["left", "right"])
def test_simultaneous_pause_frames_are_ordered_by_hash(first, sender_last):
    """Two frames resume the middle switch, with one packet waiting per side: the first class left, the second right.
    Both packets come from the sender. After the first frame the middle sends it a frame that pauses the other class
    only, then one that pauses none."""
    network = behind_two(sender_last)
    sides = ["left", "right"] if first == "left" else ["right", "left"]
    seed = seed_for([link(network, side, "middle") for side in sides], GO_ON)
    outcome = paused(network, stopped(network, {"left": 0, "right": 1}), seed)
    for side in sides:
        assert seen(outcome, link(network, side, "middle"), GO_ON - US - FRAME)[0] == (0, NONE)
        assert seen(outcome, link(network, "middle", side), GO_ON) == [(0, DATA)]
    left = SECOND if first == "left" else FIRST
    assert seen(outcome, link(network, "middle", "sender"), GO_ON) == [(0, left), (FRAME, NONE)]


@pytest.mark.parametrize("own", ["idle", "ends"])
@pytest.mark.parametrize("sender_last", [False, True])
@pytest.mark.parametrize("frame_first", [False, True])
def test_simultaneous_pause_frame_and_packet_are_ordered_by_hash(frame_first, sender_last, own):
    """A pause frame reaches the middle together with a packet of the sender in the other class.

    If the frame comes first, the queued packet leaves, a frame resumes the sender at once, then the new packet waits
    and another frame pauses its class until it leaves. If the packet comes first, it leaves, as its class was never
    paused, and the queued one leaves after it. The order is the same whether the port to the sender was idle, or has
    just sent a packet of the other host."""
    network = behind_two(sender_last)
    at = network.index
    letters = stopped(network, {"left": 0})
    letters.append(MessageSpec(GO_ON - US - SMALL, at["sender"], at["far_left"], 100, priority=1))
    if own == "ends":
        letters.append(MessageSpec(GO_ON - US - 2 * SMALL, at["other"], at["sender"], 100))
    order = [link(network, "left", "middle"), link(network, "sender", "middle")]
    seed = seed_for(order if frame_first else order[::-1], GO_ON)
    outcome = paused(network, letters, seed)
    assert seen(outcome, link(network, "middle", "left"), GO_ON) == [(0, DATA), (SMALL, DATA)]
    told = [(0, NONE), (FRAME, SECOND), (SMALL, NONE)] if frame_first else [(SMALL, NONE)]
    assert seen(outcome, link(network, "middle", "sender"), GO_ON) == told


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hop", [0, 3])
@pytest.mark.parametrize(("late", "what", "lost"), [
    (0, ("cut",), True), (1, ("cut",), False), (0, ("cut", "mend"), False), (0, ("mend", "cut"), True),
])  # fmt: skip
def test_packet_sees_network_changes_made_at_its_start_time(hop, late, what, lost):
    """The packet starts at a host or at a switch. Changes of one time apply in the order in which they were
    scheduled."""
    start = US if hop == 0 else US + LARGE + US
    changes = [NetworkChange(start + late, each, hop) for each in what]
    outcome = paused(star(3, CABLE), [MessageSpec(US, 0, 1, 1000)], changes=changes)
    assert next(each.lost for each in outcome.transmissions if each.link == hop) == lost


def test_resumed_host_starts_due_messages_before_handling_arrivals():
    """Host 0 pauses from 5 to 30 us. Meanwhile its second message was due, then its first, and two packets of host 2
    arrived; a third one arrives at the resume time. The first message's packet leaves, and meanwhile the answers to
    all three queue up, ahead of the other packet."""
    small = 66 * 800
    letters = [MessageSpec(20 * US, 0, 1, 100), MessageSpec(10 * US, 0, 1, 100)]
    letters += [MessageSpec(begin * US, 2, 0, 100) for begin in (11, 8)]
    letters.append(MessageSpec(30 * US - 2 * SMALL - 2 * US, 2, 0, 100))
    changes = [NetworkChange(5 * US, "stop_host", 0), NetworkChange(30 * US, "resume_host", 0)]
    outcome = paused(star(3, CABLE), letters, changes=changes)
    sent = [(each.start - 30 * US, each.packet.flow) for each in outcome.transmissions if each.link == 0]
    answers = [(SMALL + place * small, flow) for place, flow in enumerate((3, 2, 4))]
    assert sent[:5] == [(0, 0), *answers, (SMALL + 3 * small, 1)]
