"""The userspace switch: one process that is the whole network between the hosts' namespaces.

    packet     IPv4 packets as the fabric sees them: class, importance, size on the link; congestion marks
    draws      random numbers by counter
    fabric     the rules of ports, links and load balancing on a clock that it is told; no input or output
    tun        the devices through which hosts' packets come and go
    clock      a timer that a process can wait for together with its devices
    process    the loop around all of them

Why a fabric without input and output: so that it can be held, packet by packet, against the simulator's.
"""
