"""Rounds of a parameter server, written as SimPy processes: workers push, the server answers the slowest half late.

python examples/own_process.py
"""

import simpy

import gradwire
from gradwire.sim.processes.user_process import Wires

US = 10**6
SERVER, WORKERS, ROUNDS, SIZE = "h0", ("h1", "h2", "h3", "h4"), 3, "1MB"


def server(wires, inbox, outbox):
    """Sums up what comes; whoever is in the slower half gets its answer 50 us later."""
    for number in range(ROUNDS):
        order = []
        for _ in WORKERS:
            order.append((yield inbox.get()))
        print(f"round {number}, at {wires.env.now / US:.1f} us: {', '.join(order)}")
        for place, name in enumerate(order):
            late = place >= len(order) // 2
            wires.env.process(answer(wires, name, 50 * US if late else 0, outbox[name]))


def answer(wires, name, delay, box):
    yield wires.env.timeout(delay)
    yield wires.send(SERVER, name, SIZE, kind="pull")
    box.put("parameters")


def worker(wires, name, inbox, box):
    """Computes for 100 us, pushes its gradient, waits for parameters."""
    for _ in range(ROUNDS):
        yield wires.env.timeout(100 * US)
        yield wires.send(name, SERVER, SIZE, kind="push")
        inbox.put(name)
        yield box.get()


wires = Wires(gradwire.load_scenario("incast"))
inbox, outbox = simpy.Store(wires.env), {name: simpy.Store(wires.env) for name in WORKERS}
workers = [worker(wires, name, inbox, outbox[name]) for name in WORKERS]
wires.run(server(wires, inbox, outbox), *workers)
rows = wires.messages.to_pylist()
print(f"{len(rows)} messages, slowest {max(row['end_ps'] - row['start_ps'] for row in rows) / US:.1f} us")
