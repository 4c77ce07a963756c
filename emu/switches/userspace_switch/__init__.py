"""The userspace switch: one process that is the whole network between the hosts' namespaces.

`rules`, `frames`, `answer_delay` and `loop` are compiled, because a packet every few microseconds needs it. The rules
have no input or output so that tests can compare them with the simulator's, packet by packet.
"""
