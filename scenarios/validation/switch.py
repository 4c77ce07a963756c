"""Checks switch features and load balancing of a scenario against the transports in use.

Switch features are trimming, ranking, pausing and selective drop. Only transports that carry jobs or traffic count. A
user-defined transport is trusted: it declares nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.loading.registry import component, components
from gradwire.scenarios.schema.effect_conditions import data_classes
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.network.traffic import TrafficTable
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import format_size
from gradwire.scenarios.validation.common import beyond_queues
from gradwire.scenarios.wire import MIN_FRAME, frame_bytes

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

NDP_PACKETS = 8  # full packets in NDP's queues
MOST_PATHS = 128  # that `bitmap` keeps penalties of
SENDERS = ("transport", "job", "traffic")
"""Keys that determine the sizes of packets: `concerns` of a mistake about them."""


UsedTransport = tuple[str, Any]
"""A path, and the transport that it names."""


def used_transports(scenario: Scenario) -> list[UsedTransport]:
    """Return every transport in use once, after the first path that names it."""
    found: dict[Transport, str] = {}
    for kind in ("job", "traffic"):
        for index, table in enumerate(getattr(scenario, kind)):
            if table.transport is None:
                found.setdefault(scenario.transport, "transport.kind")
            else:
                found.setdefault(table.transport, f"{kind}[{index}].transport")
    return [(path, transport) for transport, path in found.items()]


def check_switch(scenario: Scenario) -> Iterator[Mistake]:
    """Yield every mistake that this module finds."""
    known = [each for each in used_transports(scenario) if not isinstance(each[1], UserTransport)]
    yield from _classes(scenario)
    yield from _trimming(scenario, known)
    yield from _ranks(scenario, known)
    yield from _pauses(scenario, known)
    yield from _paths(scenario, known)
    yield from _entropies(scenario)
    yield from _sums(scenario)


def _full(scenario: Scenario) -> list[int]:
    """Return the bytes on the wire of a full packet of every transport in use."""
    return [frame_bytes(each.payload, each.overhead) for each in scenario.transports]


def _classes(scenario: Scenario) -> Iterator[Mistake]:
    switch, classes = scenario.switch, scenario.switch.pfc_classes or ()
    yield from beyond_queues("switch.trim_priority", switch.trim_priority, switch.queues)
    for index, number in enumerate(classes):
        path = f"switch.pfc_classes[{index}]"
        yield from beyond_queues(path, number, switch.queues)
        if 0 <= number < switch.queues and number in classes[:index]:
            yield Mistake(path, "is named twice", number, "each class once")


def _trimming(scenario: Scenario, known: list[UsedTransport]) -> Iterator[Mistake]:
    switch = scenario.switch
    threshold = switch.trim_threshold
    frames = _full(scenario)
    if threshold is None:
        for path, transport in known:
            if transport.wants_trimming:
                enough = format_size(NDP_PACKETS * max(frames))
                expected = f'switch.trim_threshold, such as "{enough}" ({NDP_PACKETS} full packets)'
                if "trimming" in type(transport).model_fields:
                    expected += ", or trimming = false in the transport"
                what = "detects losses by headers of trimmed packets, but switches do not trim"
                yield Mistake(path, what, transport.kind, expected, ("switch.trim_threshold",))
        return
    value = format_size(threshold)
    for path, transport in known:
        if not transport.handles_trimming:
            what = f"leaves headers without payload, which {transport.kind} cannot read"
            expected = 'no trim_threshold, or transport = "ndp" or "nscc"'
            yield Mistake("switch.trim_threshold", what, value, expected, (path, "transport"))
    if frames and threshold < max(frames):
        what = f"trims every queued packet: a full one has {format_size(max(frames))}"
        expected = f'several full packets, such as "{format_size(NDP_PACKETS * max(frames))}"'
        yield Mistake("switch.trim_threshold", what, value, expected, SENDERS)
    if switch.trim_size < MIN_FRAME or (frames and switch.trim_size >= min(frames)):
        what = "is below the smallest frame"
        if switch.trim_size >= MIN_FRAME:
            what = f"is no less than a full packet, {format_size(min(frames))}"
        expected = f'at least {format_size(MIN_FRAME)} and below a full packet, such as "64B"'
        yield Mistake("switch.trim_size", what, format_size(switch.trim_size), expected, SENDERS)


def _ranks(scenario: Scenario, known: list[UsedTransport]) -> Iterator[Mistake]:
    switch = scenario.switch
    if not switch.shortest_first:
        for path, transport in known:
            if transport.wants_shortest_first:
                what, key = "relies on switches that serve the shortest message first", "switch.shortest_first"
                yield Mistake(path, what, transport.kind, f"{key} = true", (key,))
        return
    for path, transport in known:
        if not transport.wants_shortest_first:
            what = f"ranks packets by remaining bytes, which {transport.kind} does not send"
            expected = 'shortest_first = false, or transport = "pfabric"'
            yield Mistake("switch.shortest_first", what, True, expected, (path, "transport"))
    for field, why in (
        ("pfc", "drops the longest message when the buffer is full, which pfc prevents"),
        ("trim_threshold", "drops the longest message where trim_threshold would trim the latest"),
        ("shared_buffer", "frees space in the port's own buffer; a shared buffer has no ranks"),
        ("buffer_share", "frees space in the whole buffer, whatever share a queue may fill"),
        ("drr_quantum", "serves packets out of turn, and deficits are counted by the head of a queue"),
    ):
        if getattr(switch, field) not in (None, False):
            expected = f"one of shortest_first and {field}"
            yield Mistake("switch.shortest_first", why, True, expected, (f"switch.{field}",))


def _pauses(scenario: Scenario, known: list[UsedTransport]) -> Iterator[Mistake]:
    switch = scenario.switch
    if not switch.pfc:
        return
    for path, transport in known:
        if transport.needs_drops:
            what = f"prevents drops, by which {transport.kind} detects congestion"
            yield Mistake("switch.pfc", what, True, "pfc = false, or another transport", (path, "transport"))
    if switch.trim_threshold is not None:
        what = "reserves headroom for packets that trim_threshold trims before they need it"
        yield Mistake("switch.pfc", what, True, "one of pfc and trim_threshold", ("switch.trim_threshold",))
    if switch.selective_drop:
        paused = set(range(switch.queues) if switch.pfc_classes is None else switch.pfc_classes)
        lost = sorted(paused & _droppable_classes(scenario))
        if lost:
            names = "class " + str(lost[0]) if len(lost) == 1 else "classes " + ", ".join(map(str, lost))
            what = f"drops packets of {names}, whose drops pfc prevents"
            expected = "switch.pfc_classes without them, or one of the two"
            concerns: tuple[str, ...] = (
                "switch.pfc",
                "switch.pfc_classes",
                "switch.queues",
                "transport",
                "job",
                "traffic",
            )
            yield Mistake("switch.selective_drop", what, True, expected, concerns)
    frame = max(_full(scenario), default=0)
    if switch.pfc_threshold < frame:
        what = f"is below a full packet of {format_size(frame)}: each one would pause its link"
        yield Mistake("switch.pfc_threshold", what, format_size(switch.pfc_threshold), "several full packets", SENDERS)
    if switch.pfc_hysteresis is not None and switch.pfc_hysteresis > switch.pfc_threshold:
        what = "is above pfc_threshold, from which it is subtracted"
        expected = f"at most {format_size(switch.pfc_threshold)}"
        value = format_size(switch.pfc_hysteresis)
        yield Mistake("switch.pfc_hysteresis", what, value, expected, ("switch.pfc_threshold",))


def _droppable_classes(scenario: Scenario) -> set[int]:
    """Return the queues that may hold packets that are not ECN-capable, acknowledgements included."""
    found: set[int] = set()
    for table in scenario.senders:
        transport = table.transport or scenario.transport
        chosen = table.tagging.magnitude if isinstance(table, Job) else table.droppable
        if chosen or not transport.ecn_capable:
            found |= _data_classes(scenario, table)
        if not transport.control_ecn_capable:
            found.add(min(transport.control_priority, scenario.switch.queues - 1))
    return found


def _data_classes(scenario: Scenario, table: Job | TrafficTable) -> set[int]:
    """Return the queues that may hold data of a job or traffic."""
    return {
        min(number, scenario.switch.queues - 1) for number in data_classes(table, table.transport or scenario.transport)
    }


def _crowded(scenario: Scenario) -> Iterator[str]:
    """Yield a remark if queues below their thresholds can fill the whole buffer, so that low classes crowd high ones
    out."""
    switch, used = scenario.switch, sorted({c for each in scenario.senders for c in _data_classes(scenario, each)})
    thresholds = switch.thresholds()
    if thresholds is None or len(thresholds) != switch.queues or not switch.selective_drop or switch.pfc:
        return
    if switch.buffer_share is not None or switch.shared_buffer is not None or len(used) < 2:
        return
    total = sum(thresholds[c] for c in used)
    if total > switch.buffer:
        yield (
            f"the thresholds of the {len(used)} queues that carry data are {format_size(total)} together, more than "
            f"switch.buffer, {format_size(switch.buffer)}: low classes can crowd high ones out (switch.buffer_share "
            "reserves space for them)"
        )


def _sprayed(scenario: Scenario) -> bool:
    """Return True if packets of one message take different paths."""
    balancer = component("load_balancing", scenario.load_balancing)
    return balancer is not None and balancer.per_packet and scenario.topology.several_paths


def _paths(scenario: Scenario, known: list[UsedTransport]) -> Iterator[Mistake]:
    balancing, topology = scenario.load_balancing, scenario.topology
    for path, transport in known:
        if transport.switches_between is not None:
            if _sprayed(scenario):
                what = f"sends each packet on its own path, but {transport.kind} compares switches along one path"
                expected = "ecmp, ecmp_weighted, flowlet or flowlet_least_queue"
                yield Mistake("load_balancing", what, balancing, expected, (path, "transport", "topology"))
            if topology.longest_path > transport.switches_between:
                yield Mistake(path, **path_too_long(transport, topology.longest_path), concerns=("topology",))
        balancer = component("load_balancing", balancing)
        if balancer is not None and balancer.learns() and not transport.acknowledges:
            what = f"learns from acknowledgements, but {transport.kind} has none"
            yield Mistake("load_balancing", what, balancing, "source_random, or another transport", (path, "transport"))


def _entropies(scenario: Scenario) -> Iterator[Mistake]:
    """Check that a number of paths is set only if hosts choose paths, and that these can number them."""
    entropies, balancing = scenario.switch.path_entropies, scenario.load_balancing
    if entropies is None or ":" in balancing:
        return
    balancer = component("load_balancing", balancing)
    if balancer is not None and balancer.numbers_paths and (entropies > MOST_PATHS or entropies & (entropies - 1)):
        what, expected = f"cannot be numbered by {balancing}", f"a power of two, at most {MOST_PATHS}"
        yield Mistake("switch.path_entropies", what, entropies, expected, ("load_balancing",))
    by_hosts = [kind for kind, each in components("load_balancing").items() if each.by_hosts()]
    if balancing not in by_hosts:
        what = f"has no effect with {balancing}: switches choose the paths"
        expected = f"load_balancing one of {', '.join(by_hosts)}"
        yield Mistake("switch.path_entropies", what, entropies, expected, ("load_balancing",))


def _sums(scenario: Scenario) -> Iterator[Mistake]:
    """Check in-network aggregation: transports that support it, and conflicting switch features."""
    switch = scenario.switch
    users = [index for index, job in enumerate(scenario.job) if job.exchange.aggregates]
    if not switch.aggregation_slots or not users:
        return
    slots = switch.aggregation_slots
    for field, what in (
        ("pfc", "counts packets by their ingress link, but a sum has many"),
        ("trim_threshold", "trims packets to headers, which have nothing to add"),
        ("shortest_first", "drops and reorders by the remaining bytes of one message"),
    ):
        if getattr(switch, field):
            expected = "one of the two"
            concerns = (f"switch.{field}",)
            yield Mistake("switch.aggregation_slots", f"sums packets, and {field} {what}", slots, expected, concerns)
    balancer = component("load_balancing", scenario.load_balancing)
    if balancer is not None and balancer.by_hosts():
        yield Mistake(
            "load_balancing",
            "lets hosts choose paths, but copies made by switches have no host",
            scenario.load_balancing,
            "one in which switches choose",
            ("switch.aggregation_slots",),
        )
    if scenario.host.gpus > 1:
        what = "needs hosts with one port, attached to a switch"
        yield Mistake("switch.aggregation_slots", what, slots, "host.gpus = 1", ("host.gpus",))
    for index in users:
        yield from _summed(scenario, index)


def _summed(scenario: Scenario, index: int) -> Iterator[Mistake]:
    job = scenario.job[index]
    where, concerns = f"job[{index}].exchange", ("switch.aggregation_slots", "transport")
    transport = job.transport or scenario.transport
    if not vars(type(transport)).get("sums", False):
        able = [kind for kind, each in components("transport").items() if vars(each).get("sums", False)]
        what = f"sums packets, but {transport.kind} cannot acknowledge for several senders"
        yield Mistake(where, what, job.exchange.kind, f"transport one of {', '.join(able)}", concerns)
        return
    settings, kind = transport.model_dump(), type(transport)
    classic = getattr(kind, "variant", lambda _: kind)(settings) is kind
    if settings["connections"] != "fresh" or not classic:
        what = "sums packets of single messages, each acknowledged at once"
        expected = f'{transport.kind} with connections = "fresh", preset = "classic", and none of the other rules'
        yield Mistake(where, what, job.exchange.kind, expected, concerns)
    elif settings["delayed_acks"] is not None:
        what = "sums packets that must each be acknowledged at once"
        yield Mistake(where, what, job.exchange.kind, f"{transport.kind} without delayed_acks", concerns)
    if job.order == "layer" or (job.scheduler is not None and job.scheduler.holds_back):
        what = "sums the packets of all workers, and hosts that hold messages back would wait for each other"
        expected = 'order = "fifo", and a scheduler that holds nothing back, if any'
        yield Mistake(where, what, job.exchange.kind, expected, (f"job[{index}]",))


def path_too_long(transport: Any, between: int) -> dict[str, Any]:
    """Return the mistake's parts for a longest path of `between` switches; `gradwire.sim.preparation` reads files."""
    most = transport.switches_between
    return {
        "what": f"has space for {most} switches in a packet, but the longest path has {between}",
        "value": transport.kind,
        "expected": "a smaller topology, or another transport",
    }


def switch_remarks(scenario: Scenario) -> Iterator[str]:
    """Yield remarks on valid but probably unintended settings, one sentence each."""
    switch = scenario.switch
    for _, transport in used_transports(scenario):
        kind = transport.kind
        if len(transport.classes_from(0)) > 1 and switch.queues == 1:
            yield f"transport is {kind} but switch.queues is 1: there is no lower priority to demote to"
        if transport.wants_pfc and not switch.pfc:
            yield f"transport is {kind} but switch.pfc is off: each loss costs it a round trip"
        if transport.ignores_losses and not switch.pfc:
            yield f"transport is {kind} but switch.pfc is off: losses do not lower its rate"
        if transport.wants_order and transport.switches_between is None and _sprayed(scenario):
            yield f"transport is {kind} but packets are sprayed: it takes reordering for loss and goes back"
        if transport.wants_marks and switch.ecn_threshold is None:
            yield f"transport is {kind} but switch.ecn_threshold is not set: no packet will be marked"
        if transport.wants_trimming and switch.trim_threshold is not None and switch.queues == 1:
            yield f"transport is {kind} but switch.queues is 1: headers wait behind data"
    yield from _crowded(scenario)
    users = [f"job[{index}].exchange" for index, job in enumerate(scenario.job) if job.exchange.aggregates]
    if users and not switch.aggregation_slots:
        yield f"{', '.join(users)}: switches should sum, but switch.aggregation_slots is 0: servers do all of it"
    if switch.pfc and switch.pfc_headroom is not None and scenario.topology.host_count is not None:
        cable = -(-2 * scenario.link.latency * scenario.link.rate // (8 * 10**12))
        needed = cable + 3 * max(_full(scenario), default=0) + MIN_FRAME
        if switch.pfc_headroom < needed:
            yield (
                f"switch.pfc_headroom is {format_size(switch.pfc_headroom)}, but {format_size(needed)} can still "
                "arrive over [link]: packets may be dropped in spite of pfc"
            )
    if switch.pfc and scenario.topology.circular:
        yield f"switch.pfc is on in a {scenario.topology.kind}: cyclic buffer dependencies may deadlock"
