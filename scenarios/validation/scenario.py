"""Finds mistakes of a scenario that no single table shows, and notes on settings without effect or probably unintended.

Each check is a generator of `Mistake`s whose text gives the reason. `concerns` names every other path that a check has
read, so that `gradwire.scenarios.loading.load` can leave out a mistake that only follows from another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.loading.explain import explain_validation_error
from gradwire.scenarios.schema.job.job import HostPlacement, Job
from gradwire.scenarios.schema.job.loss_bound import largest_bound_of_sender
from gradwire.scenarios.schema.job.training import PACKET_NETWORKS
from gradwire.scenarios.schema.network.network import QueueCapacity, Switch
from gradwire.scenarios.schema.network.per_queue import count_text, fits
from gradwire.scenarios.schema.network.topology import MAX_CABLES, MAX_HOSTS, MAX_SWITCHES
from gradwire.scenarios.units import Bps, Ps, format_size, format_time
from gradwire.scenarios.validation.common import HOST_KEYS, beyond_queues, needless_bound, unknown_host
from gradwire.scenarios.validation.effect import keys_without_effect
from gradwire.scenarios.validation.switch import check_switch, switch_remarks
from gradwire.scenarios.validation.traffic import check_traffic
from gradwire.scenarios.wire import MIN_FRAME, frame_bytes, serialisation_ps

if TYPE_CHECKING:
    from gradwire.scenarios.schema.policy import Policy
    from gradwire.scenarios.schema.scenario import Scenario


def find_mistakes(scenario: Scenario) -> list[Mistake]:
    """Return every mistake of `scenario` beyond its single tables, without its policies."""
    found: list[Mistake] = []
    for check in (
        _names, _topology, _hosts, _exchanges, _output, _overrides, _switch, _latency, _classes, _bounds,
        check_switch, check_traffic, _exec,
    ):  # fmt: skip
        found.extend(check(scenario))
    return found


def find_policy_mistakes(scenario: Scenario, policy: Policy) -> list[Mistake]:
    """Return the mistakes of the variant that `policy` makes of a valid `scenario`."""
    tables = scenario.variant_tables(policy)
    try:
        type(scenario).model_validate(tables)
    except ValidationError as error:
        return [
            Mistake(f"policy {policy.name}: {m.path}", m.what, m.value, m.expected)
            for m in explain_validation_error(error, tables, type(scenario))
        ]
    return []


def notes(variants: Sequence[Scenario]) -> list[str]:
    """Return notes on the variants of a scenario, one sentence each. First the keys that have no effect in any variant
    that sets them, then the remarks on each, with its policy."""
    named = [f"{variant.policy_name}: {text}" for variant in variants for text in _probably_not_meant(variant)]
    return [*keys_without_effect(*variants), *dict.fromkeys(named)]


def remarks(scenario: Scenario) -> list[str]:
    """Return notes on valid but probably unintended settings of one scenario; first the keys without effect."""
    return [*keys_without_effect(scenario), *_probably_not_meant(scenario)]


def _probably_not_meant(scenario: Scenario) -> list[str]:
    found = list(switch_remarks(scenario))
    for index, job in enumerate(scenario.job):
        policy = getattr(job.transport or scenario.transport, "stop_policy", "on_probe")
        if job.bound_per == "step" and policy != "on_probe":
            found.append(
                f'job[{index}].bound_per is "step" but stop_policy is "{policy}": each message spends its own share '
                "and leaves little to the others"
            )
        bound = largest_bound_of_sender(job)
        if job.bound_per == "step" and "bound_most" in job.model_fields_set and job.bound_most <= bound:
            found.append(
                f"job[{index}].bound_most is {job.bound_most:g} but the bound is {bound:g}: it acts as the bound, and "
                "no message uses the unspent loss of others"
            )
    if (table := scenario.training) is not None and table.network not in PACKET_NETWORKS:
        for name in ("traffic", "fault"):
            if getattr(scenario, name):
                found.append(f"{name} has no effect on training: its network has no packets (training.network)")
    switch = scenario.switch
    if switch.ecn_threshold is not None and not switch.selective_drop:
        if any(job.tagging.magnitude for job in scenario.job):
            found.append("tagging by magnitude drops nothing: switch.selective_drop is off")
    return found


def _exchanges(scenario: Scenario) -> Iterator[Mistake]:
    for index, job in enumerate(scenario.job):
        if job.parallel is not None:
            continue  # depends on the trace: gradwire.workload.prerequisites
        for mistake in job.exchange.gpu_conflicts(job, scenario.host.gpus):
            yield replace(mistake.under(f"job[{index}]"), concerns=("host.gpus", f"job[{index}].workers"))


def _names(scenario: Scenario) -> Iterator[Mistake]:
    for table, names in (
        ("job", [job.name for job in scenario.job]),
        ("policy", [policy.name for policy in scenario.policy]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Mistake(f"{table}[{index}].name", "is already in use", name, "a unique name")


def _topology(scenario: Scenario) -> Iterator[Mistake]:
    hosts, total = scenario.topology.host_count, scenario.topology.card_count
    switches, cables = scenario.topology.size or (0, 0)
    if scenario.host.gpus > 1 and hosts is not None and total is not None:  # include the inside of machines
        hosts, (total, more, within) = hosts * scenario.host.gpus, _inside(hosts, total, scenario.host.gpus)
        switches, cables = switches + more, cables + within
    for count, what, most in (
        (total or 0, "hosts" if total == hosts else "network cards", MAX_HOSTS),
        (switches, "switches", MAX_SWITCHES),
        (cables, "cables", MAX_CABLES),
    ):
        if count > most:
            yield Mistake("topology", f"has {count} {what}", None, f"at most {most}")
            break
    yield from scenario.topology.mistakes(scenario)


def _inside(machines: int, cards: int, gpus: int) -> tuple[int, int, int]:
    """Return the numbers of accelerator ports, and of switches and cables inside machines."""
    shares = cards < machines * gpus
    ways = machines * gpus if shares else cards
    return ways + machines * gpus, machines + cards * shares, machines * gpus * (1 + shares)


def _output(scenario: Scenario) -> Iterator[Mistake]:
    known = [table.name for table in scenario.senders]
    named = scenario.output.packet_log
    for index, name in enumerate(() if isinstance(named, bool) else named):
        if name not in known:
            path = f"output.packet_log[{index}]"
            yield Mistake(path, "is not a job or traffic", name, ", ".join(known), ("job", "traffic"))


def _hosts(scenario: Scenario) -> Iterator[Mistake]:
    total, gpus = scenario.host_count, scenario.host.gpus
    if total is None:  # a graph file: gradwire.topology checks the names when it reads it
        return
    used: set[str] = set()
    unnamed = 0
    for index, job in enumerate(scenario.job):
        if isinstance(job.placement, HostPlacement):
            for role in ("workers", "servers"):
                for position, host in enumerate(getattr(job.placement, role)):
                    used.add(host)
                    yield from unknown_host(scenario, f"job[{index}].placement.{role}[{position}]", host)
        else:
            yield from _fits(index, job, total, gpus)
            unnamed += job.exchange.hosts_needed(job, gpus)
    if len(scenario.job) > 1 and unnamed + len(used) > total:
        what = f"needs {unnamed + len(used)} hosts for all jobs together, but the topology has {total}"
        yield Mistake("job", what, None, f"at most {total} workers and servers", HOST_KEYS)


def _fits(index: int, job: Job, total: int, gpus: int) -> Iterator[Mistake]:
    needed = job.exchange.hosts_needed(job, gpus)
    if job.exchange.shares_hosts and job.servers > job.workers:
        what = f"is above the {job.workers} workers whose hosts the servers share"
        yield Mistake(f"job[{index}].servers", what, job.servers, f"at most {job.workers}")
    if needed > total:
        roles = f"{job.workers} workers" + (f" and {job.servers} servers" if job.servers else "")
        unit = "accelerators" if gpus > 1 else "hosts"
        what = f"{roles} need {needed} {unit}, but the topology has {total}"
        if gpus > 1 and needed > job.workers:
            what += ": each server takes a whole machine"
        concerns = (*HOST_KEYS, f"job[{index}].servers", f"job[{index}].exchange")
        yield Mistake(f"job[{index}].workers", what, job.workers, f"at most {total} {unit} in use", concerns)


def _overrides(scenario: Scenario) -> Iterator[Mistake]:
    total = scenario.topology.host_count  # cables are those of the topology
    seen: set[frozenset[str]] = set()
    for index, override in enumerate(scenario.link_override):
        path = f"link_override[{index}].between"
        ends = frozenset(override.between)
        if len(ends) == 1:
            yield Mistake(path, "connects a node to itself", list(override.between), "the two ends of a cable")
        elif ends in seen:
            yield Mistake(path, "is named by two overrides", list(override.between), "each cable once")
        seen.add(ends)
        for end in override.between:
            if total is not None and re.fullmatch(r"h\d+", end) and int(end[1:]) >= total:
                what = f"{end} is not a host of the topology"
                yield Mistake(path, what, list(override.between), f"h0 to h{total - 1}", ("topology",))


def _switch(scenario: Scenario) -> Iterator[Mistake]:
    """Check the queues of [switch], and of every override if those are right."""
    switch = scenario.switch
    mistakes = list(_queues(scenario, switch))
    yield from mistakes
    for index, override in enumerate(() if mistakes else switch.override):
        for mistake in _queues(scenario, switch.at_ports([index])):
            changes = override.changes()
            key = mistake.path.removeprefix("switch.")
            path = f"switch.override[{index}].{key if key in changes else next(iter(changes))}"
            yield replace(mistake, path=path, concerns=(*mistake.concerns, "switch"))


def _queues(scenario: Scenario, switch: Switch) -> Iterator[Mistake]:
    """Check sizes against the capacity of queues, whichever key limits it (`Switch.queue_capacity`)."""
    transport = scenario.transport
    frame = frame_bytes(transport.payload, transport.overhead)
    lists_fit = True
    for key, value in (("buffer_share", switch.buffer_share), ("ecn_threshold", switch.ecn_threshold)):
        if value is not None and not fits(value, switch.queues):
            lists_fit = False
            values = [format_size(int(size)) for size in value] if key == "ecn_threshold" else list(value)
            one = "size" if key == "ecn_threshold" else "fraction"
            expected = f"one {one} without brackets, or a list of {switch.queues}"
            what = f"has {count_text(value)} for {switch.queues} queues"
            yield Mistake(f"switch.{key}", what, values, expected, ("switch.queues",))
    rooms = switch.queue_capacities()
    least = min(rooms, default=None)
    if least is not None and least.size < frame:
        yield _too_small(switch, least, frame)
    if switch.ecn_threshold is not None and lists_fit:
        yield from _unreachable(switch)
    elif switch.ecn_threshold is None and switch.selective_drop:
        what = "needs a threshold above which to drop"
        yield Mistake("switch.selective_drop", what, True, "switch.ecn_threshold beside it", ("switch.ecn_threshold",))
    room = max(rooms, default=None)
    if switch.trim_threshold is not None and room is not None and switch.trim_threshold >= room.size:
        what = f"is not below {room.words}: no space would be left for a header"
        expected, concerns = f"less than {format_size(room.size)}", (f"switch.{room.key}",)
        yield Mistake("switch.trim_threshold", what, format_size(switch.trim_threshold), expected, concerns)


def _too_small(switch: Switch, room: QueueCapacity, frame: int) -> Mistake:
    """Return the mistake of a queue that cannot hold a single packet of `frame` bytes."""
    concerns = ("transport.payload", "transport.kind")
    if room.key == "buffer_share":
        what = f"leaves a queue {format_size(room.size)}, less than a single packet of {format_size(frame)}"
        share = min(switch.buffer_share or ())
        return Mistake("switch.buffer_share", what, share, "space for many packets", (*concerns, "switch.buffer"))
    what = f"does not hold a single packet of {format_size(frame)}"
    if room.key == "shared_buffer":
        what = f"leaves one queue {format_size(room.size)}, and {what.removeprefix('does not hold ')} needs more"
    value = getattr(switch, room.key)
    return Mistake(f"switch.{room.key}", what, format_size(value), "space for many packets", concerns)


def _unreachable(switch: Switch) -> Iterator[Mistake]:
    """Check ECN thresholds against the capacity of their queues: above it nothing is ever marked or selectively
    dropped. In a list, thresholds of some queues may be unreachable, which turns marking off there, unless a share
    limits them."""
    thresholds = switch.thresholds() or ()
    rooms = [switch.queue_capacity(queue) for queue in range(switch.queues)]
    above = {queue: room for queue, room in enumerate(rooms) if room is not None and thresholds[queue] >= room.size}
    shares = {queue: room for queue, room in above.items() if room.key == "buffer_share"}
    if len(above) < switch.queues and not shares:
        return
    first, room = min((shares or above).items())
    what, expected = f"is not below {room.words}", f"less than {format_size(room.size)}"
    concerns = {f"switch.{room.key}", "switch.queues"}
    if shares:
        one = len(shares) == 1
        queues = f"queue {first}" if one else "queues " + ", ".join(map(str, shares))
        what = f"of {queues} is not below what buffer_share leaves {'it' if one else 'them'}"
        expected += ", or a larger buffer_share"
        concerns.add("switch.buffer" if switch.shared_buffer is None else "switch.shared_buffer")
    yield Mistake(
        "switch.ecn_threshold",
        f"{what}, so that nothing {'there ' if shares else ''}would ever be marked",
        format_size(thresholds[first]),
        expected,
        tuple(sorted(concerns)),
    )


def _latency(scenario: Scenario) -> Iterator[Mistake]:
    """Check the host's reaction time: jobs and network alternate in lookahead windows, and a faster host would act in
    the past."""
    rates = [scenario.link.rate, *(o.rate for o in scenario.link_override if o.rate)]
    latencies = [scenario.link.latency, *(o.latency for o in scenario.link_override if o.latency is not None)]
    for rate, latency in scenario.topology.cables(scenario.link.rate, scenario.link.latency):
        rates.append(Bps(rate))
        latencies.append(Ps(latency))
    for rate, latency in () if (inside := scenario.host.inside) is None else inside[1:]:
        rates.append(Bps(rate))
        latencies.append(Ps(latency))
    lookahead = min(latencies) + serialisation_ps(MIN_FRAME, max(rates))
    if scenario.topology.host_count is not None and scenario.host.software_latency < lookahead:
        what = "is below the latency of the shortest link and the time of its smallest packet"
        expected = f"at least {format_time(lookahead)}"
        concerns = ("link.rate", "link.latency", "link_override", "topology", "host")
        yield Mistake("host.software_latency", what, format_time(scenario.host.software_latency), expected, concerns)


def _classes(scenario: Scenario) -> Iterator[Mistake]:
    queues = scenario.switch.queues
    yield from beyond_queues("transport.control_priority", scenario.transport.control_priority, queues)
    for index, job in enumerate(scenario.job):
        tagging = job.tagging
        matters = tagging.layer_priority or "priorities" in tagging.model_fields_set
        if matters and max(tagging.priorities) >= queues:
            usable = list(range(1, queues)) or [0]
            expected = f"classes below switch.queues, such as {usable}"
            what = f"goes beyond the {queues} queues of a switch"
            concerns = ("switch.queues",)
            yield Mistake(f"job[{index}].tagging.priorities", what, list(tagging.priorities), expected, concerns)


def _bounds(scenario: Scenario) -> Iterator[Mistake]:
    for index, job in enumerate(scenario.job):
        transport = job.transport or scenario.transport
        for field in ("push_bound", "pull_bound"):
            yield from needless_bound(f"job[{index}]", field, getattr(job, field), transport)
        if job.bound_per == "step" and transport.may_lose and not transport.shares_bound:
            what = f"shares a bound among messages, but {transport.kind} applies it per message"
            concerns = ("transport.kind", f"job[{index}].transport")
            yield Mistake(f"job[{index}].bound_per", what, "step", '"message", or transport = "dlcp"', concerns)


def _exec(scenario: Scenario) -> Iterator[Mistake]:
    table = scenario.exec
    if table is None:
        return
    if scenario.host_count is not None:  # else a graph file, whose names are checked when it is read
        named = [(f"exec.hosts[{place}]", name) for place, name in enumerate(table.hosts or ())]
        named += [(f"exec.host[{place}].name", each.name) for place, each in enumerate(table.host)]
        for place, mark in enumerate(table.mark):
            ends = (("host", mark.host), ("to", mark.to))
            named += [(f"exec.mark[{place}].{key}", name) for key, name in ends if name is not None]
        for path, name in named:
            yield from unknown_host(scenario, path, name)
    for place, mark in enumerate(table.mark):
        yield from beyond_queues(f"exec.mark[{place}].priority", mark.priority, scenario.switch.queues)
