"""Real arrays moved along a collective: through its program, in any order that the events allow, and, as a prediction,
through its schedule, stage by stage."""

from __future__ import annotations

import numpy as np
from sim_cases import make_trace, scenario

from gradwire.result_store.table_schema import KINDS
from gradwire.workload.prerequisites import find_prerequisites, make_jobs
from gradwire.workload.program import FIRE, WAIT
from gradwire.workload.program_export import export_program

TRACE = make_trace([[301, 50], [1999, 7], [4001]])
PAYLOAD = 400


def job_of(exchange, workers, *, trace=TRACE, cards=1, gpus=1, **fields):
    """The only job of a scenario, resolved; its packets are of 100 values. `gpus`: in each machine of `cards` cards."""
    table = {"workers": workers, "exchange": exchange, **fields}
    hosts = workers // gpus + fields.get("servers", 0)
    topology = (
        {"kind": "rail", "hosts": hosts, "cards": cards, "spines": 1} if cards > 1 else {"kind": "star", "hosts": hosts}
    )
    case = scenario(table, topology=topology, host={"gpus": gpus}, transport={"kind": "dlcp", "payload": f"{PAYLOAD}B"})
    (job,) = make_jobs(case, find_prerequisites(case, trace))
    return job


class Arrays:
    """A program of one job, and the buffers of its workers: integers, so that sums are exact in any order.

    buffers : (worker, bucket) -> the bucket as it is there now.
    content : message -> what it carried; masks : message -> which of its elements arrive, bool; all, unless given.
    """

    def __init__(self, job, rng, lose=0.0):
        self.job, self.rng, self.program = job, rng, export_program([job.part])
        rows, table = self.program.messages, self.program.tables[0]
        self.segments = table.segments
        cards = job.exchange.context.cards
        worker = {host: number for number, host in enumerate(job.exchange.context.workers)}
        of_node = {node: worker[host] for host in worker for node in range(*cards.first[host : host + 2].tolist())}
        self.src, self.dst = ([of_node[node] for node in column.tolist()] for column in (rows.src, rows.dst))
        self.bucket = (rows.part // self.segments).tolist()
        self.own = {}
        for number, bucket in enumerate(job.exchange.buckets):
            size = bucket.segment_elements * self.segments
            for w in worker.values():
                self.own[w, number] = rng.integers(-1000, 1000, size)
        self.buffers = {key: value.copy() for key, value in self.own.items()}
        self.first, self.count = rows.first.tolist(), (rows.nbytes // 4).tolist()
        self.replaces = [KINDS[kind] == "all_gather" for kind in rows.kind.tolist()]
        self.masks = {}
        for message, count in enumerate(self.count if lose else ()):
            arrives = rng.random(-(-count * 4 // PAYLOAD)) >= lose
            self.masks[message] = np.repeat(arrives, PAYLOAD // 4)[:count]
        self.content, self.order = {}, []

    def run(self):
        """Everything, in an order drawn from those that are possible."""
        program, rng = self.program, self.rng
        left, fired = program.needs.copy(), set()
        flying: list[int] = []
        places = [0] * len(program.processes)

        def count(event):
            left[event] -= 1
            assert left[event] >= 0
            if left[event] == 0:
                fire(event)

        def fire(event):
            fired.add(event)
            for message in of(program.posts, event):
                self.content[message] = self.leaves(message)
                flying.append(message)
            for other in of(program.after, event):
                count(other)

        def may(process):
            steps = program.processes[process].steps
            if places[process] == len(steps):
                return False
            step = steps[places[process]]
            return step.operation != WAIT or step.value in fired

        while True:
            ready = [n for n in range(len(places)) if may(n)]
            choice = len(ready) + len(flying)
            if not choice:
                break
            index = int(rng.integers(choice))
            if index < len(ready):
                step = program.processes[ready[index]].steps[places[ready[index]]]
                places[ready[index]] += 1
                if step.operation == FIRE:
                    count(step.value)
            else:
                message = flying.pop(index - len(ready))
                self.arrives(message)
                count(message)
        assert all(place == len(process.steps) for place, process in zip(places, program.processes, strict=True))
        assert len(self.order) == len(program.messages)
        return self

    def leaves(self, message):
        """What a message takes along: its sender's buffer; which has to be what the program says it is made of."""
        key, low, high = (
            (self.src[message], self.bucket[message]),
            self.first[message],
            self.first[message] + self.count[message],
        )
        made = self.own[key].copy() if self.program.own[message] else np.zeros_like(self.own[key])
        for each in self.program.sums[message]:
            at = slice(self.first[each], self.first[each] + self.count[each])
            made[at] = self.arrived(each) + (0 if self.replaces[each] else made[at])
        found = self.buffers[key][low:high].copy()
        assert (found == made[low:high]).all()
        return found

    def arrived(self, message):
        return self.content[message] * self.masks.get(message, 1)

    def arrives(self, message):
        self.order.append(message)
        at = slice(self.first[message], self.first[message] + self.count[message])
        buffer = self.buffers[self.dst[message], self.bucket[message]]
        buffer[at] = self.arrived(message) + (0 if self.replaces[message] else buffer[at])

    def predicted(self):
        """What the workers should have in the end, by the schedule: every stage at once, one after the other."""
        number = {
            (self.src[m], self.dst[m], self.bucket[m], self.first[m], self.replaces[m]): m
            for m in range(len(self.first))
        }
        assert len(number) == len(self.first)
        buffers = {key: value.copy() for key, value in self.own.items()}
        for bucket, one in enumerate(self.job.exchange.buckets):
            size, plan = one.segment_elements, self.plan_of(bucket)
            for stage in np.unique(plan.stage):
                sent = []
                for t in np.flatnonzero(plan.stage == stage).tolist():
                    at = slice(int(plan.first[t]) * size, int(plan.first[t] + plan.count[t]) * size)
                    ends = int(plan.src[t]), int(plan.dst[t])
                    message = number[(*ends, bucket, at.start, not plan.adds[t])]
                    sent.append((ends[1], at, buffers[ends[0], bucket][at] * self.masks.get(message, 1), plan.adds[t]))
                for dst, at, values, adds in sent:
                    buffers[dst, bucket][at] = values + (buffers[dst, bucket][at] if adds else 0)
        return buffers

    def plan_of(self, bucket):
        """The schedule that a bucket goes through: there may be one for gathers and one for reduce-scatters."""
        exchange = self.job.exchange
        if not hasattr(exchange, "gathers"):
            return exchange.plan
        return (exchange.gathers if bucket < len(exchange.gathers.buckets) else exchange.scatters).plan

    def sums(self):
        """Of every bucket, what all workers have of their own."""
        workers = {worker for worker, _ in self.own}
        return {key: sum(self.own[worker, key[1]] for worker in workers) for key in self.own}


def of(lists, owner):
    first, listed = lists
    return listed[first[owner] : first[owner + 1]].tolist()


def same(one, other):
    return one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
