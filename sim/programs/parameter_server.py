"""Parameter servers as a program; `gradwire.sim.collectives.parameter_server` says what they do.

Per iteration and partition:  gradient ready -> push ... -> [adder ->] sum -> pull ... -> gate of the layer. A worker on
the server's host counts towards the sum and is counted by its gate without messages.
"""

from __future__ import annotations

from gradwire.sim.collectives.parameter_server import ParameterServers
from gradwire.sim.programs.builder import Event, Post
from gradwire.sim.programs.workers import Job


def parameter_servers(job: Job) -> None:
    """Add all events and messages of the job."""
    assert isinstance(job.exchange, ParameterServers)
    _Servers(job, job.exchange).build()


class _Servers:
    def __init__(self, job: Job, exchange: ParameterServers) -> None:
        self.job, self.exchange = job, exchange
        context = exchange.context
        self.servers = [context.cards.node(server, 0) for server in context.servers]
        self.adders = [-1] * len(self.servers)
        if exchange.effort(0):
            self.adders = [job.builder.station(node) for node in self.servers]
        self.worker_on = {node: worker for worker, node in enumerate(job.nodes)}

    def build(self) -> None:
        for iteration in range(self.job.table.iterations):
            partitions = range(len(self.exchange.partitions))
            sums = [
                self.job.builder.event(self.servers[self.exchange.partitions[n].server]) for n in partitions
            ]
            pushes: list[list[Post]] = [[] for _ in partitions]
            ready = [0] * len(sums)
            for worker in range(len(self.job.nodes)):
                moments = self.job.ready_ps(worker, iteration)
                for tensor, moment in moments.items():
                    self._ready(worker, iteration, tensor, moment, sums, pushes)
                    for number in self.exchange.of_tensor(tensor):
                        ready[number] = max(ready[number], moment)
            for number in partitions:
                self._pulls(iteration, number, ready[number], sums[number], pushes[number])

    def _ready(
        self,
        worker: int,
        iteration: int,
        tensor: int,
        moment: int,
        sums: list[Event],
        pushes: list[list[Post]],
    ) -> None:
        """A worker's gradient of a tensor: its partitions in order, pushed or, to the own host, just counted."""
        job, exchange = self.job, self.exchange
        node, leaving = job.nodes[worker], None
        for number in exchange.of_tensor(tensor):
            piece = exchange.partitions[number]
            if self.servers[piece.server] == node:
                job.fire(worker, iteration, tensor, self._added(number, sums[number]))
                leaving = None  # what comes after it leaves after it
                continue
            if leaving is None:
                leaving = job.builder.event(node)
                job.fire(worker, iteration, tensor, leaving)
            push = job.builder.message(
                job.number,
                exchange.push(iteration, number, worker, _nobody),
                (iteration, moment),
                captured=job.replay.captured(worker, iteration),
                first=piece.first,
                sums=(),
                own=True,
            )
            pushes[number].append(push)
            leaving.post(push)
            added = self._added(number, sums[number])
            push.then(added)

    def _added(self, number: int, total: Event) -> Event:
        """What a push counts towards: the sum, by way of the server's adder if that takes time."""
        effort = self.exchange.effort(number)
        if not effort:
            return total
        adding = self.job.builder.event(total.host)
        adding.station, adding.effort = self.adders[self.exchange.partitions[number].server], effort
        adding.then(total)
        return adding

    def _pulls(self, iteration: int, number: int, moment: int, total: Event, pushes: list[Post]) -> None:
        job, exchange = self.job, self.exchange
        piece, node = exchange.partitions[number], total.host
        own = self.worker_on.get(node, -1)
        for worker in exchange.turns(number):
            gate = job.gate(worker, iteration, piece.layer)
            if worker == own:
                total.then(gate)
                continue
            pull = job.builder.message(
                job.number,
                exchange.pull(iteration, number, worker, _nobody),
                (iteration, moment),
                captured=job.replay.captured(own, iteration) if own >= 0 else -1,
                first=piece.first,
                sums=pushes,
                own=own >= 0,
            )
            total.post(pull)
            pull.then(gate)


def _nobody(message: object) -> None:
    """Nobody here is told of deliveries."""
