"""What both worlds carry out: a Scenario resolved against its traces, as plain data.

    gradwire.experiment.topology    Network: nodes and links
    gradwire.experiment.routing     Routing: the next hops towards every host
    gradwire.experiment.placement   where workers and servers are
    gradwire.experiment.trips       base round trips
    gradwire.experiment.traffic     flows besides jobs
    gradwire.experiment.replay      which captured iteration a worker replays, and its times
    gradwire.experiment.program     Program: what every host computes, waits for and sends

Both worlds import this room, and it imports neither of them.
"""
