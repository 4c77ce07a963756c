"""What both worlds carry out: a Scenario resolved against its traces, as plain data.

    gradwire.experiment.topology    Network: nodes and links
    gradwire.experiment.routing     Routing: the next hops towards every host
    gradwire.experiment.placement   where workers and servers are
    gradwire.experiment.trips       base round trips
    gradwire.experiment.traffic     flows besides jobs
    gradwire.experiment.replay      which captured iteration a worker replays, and its times
    gradwire.experiment.program     Part, Step: what a job or traffic does, as an event graph, step by step
    gradwire.experiment.jobs        a training job as a part: its workers, its collective
    gradwire.experiment.collectives how gradients are exchanged: parameter servers, rings
    gradwire.experiment.written     all parts written out to the end, for hosts that run on their own

What of these a scenario chooses by name has a file of its own, in `kinds` of topology, traffic and collectives.

Both worlds import this room, and it imports neither of them.
"""
