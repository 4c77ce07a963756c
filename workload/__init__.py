"""The simulator's and the emulator's common workload: a Scenario resolved against its traces, as plain data.

    gradwire.topology                Network: nodes and links
    gradwire.topology.routing        Routing: the next hops towards every host
    gradwire.topology.placement      hosts of workers and servers
    gradwire.topology.base_rtt       base round-trip times
    gradwire.workload.traffic        flows besides jobs
    gradwire.workload.replay         the captured iteration that a worker replays, and its times
    gradwire.workload.program        Part, Step: a job or traffic table as an event graph, step by step
    gradwire.workload.jobs           a training job as a part: its workers and its collective
    gradwire.workload.collectives    exchanges of gradients: parameter servers, rings, trees, ...
    gradwire.workload.program_export all parts written out to the end, for hosts that run on their own

Whatever a scenario selects by name has a file of its own.

The simulator and the emulator import this package; it imports neither of them.
"""
