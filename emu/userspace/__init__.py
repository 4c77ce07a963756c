"""The userspace switch: one process that is the whole network between the hosts' namespaces.

Compiled, because a packet every few microseconds leaves no time for anything else:

    rules         of ports, links and load balancing, on a clock that they are told; no input or output
    frames        IPv4 packets as a switch sees them: class, importance, size on the link; congestion marks
    loop          read, apply the rules, write, sleep
    machine       where it is kept

In Python:

    layout        where things stand in memory; the state of an empty network
    fabric        the network of a plan: its state, and what it has counted
    process       what is around the loop: from the fork to the last answer
    taps          captures at switches
    tun, card     the devices through which hosts' packets come and go, and what holds the kernel's TCP back there
    clock         a timer that a process can wait for together with its devices

Why rules without input and output: so that they can be held, packet by packet, against the simulator's.
"""
