"""The userspace switch: one process that is the whole network between the hosts' namespaces.

Compiled, because a packet every few microseconds needs it:

    rules            ports, links and load balancing, on a given clock; no input or output
    frames           IPv4 packets as seen by a switch: class, importance, size on the link; congestion marks
    answer_delay     delay of hosts' acknowledgements
    loop             read, apply the rules, write, sleep
    compiled_switch  its machine code

In Python:

    layout           memory layout, and the state of an empty network
    fabric           the network of a plan: its state and counts
    process          the process around the loop, from fork to exit
    captures         captures at switches
    tun, host_nic    the devices of hosts' packets, and the queues that hold back the kernel's TCP
    clock            a timer that can be waited for together with devices

The rules have no input or output so that tests can compare them with the simulator's, packet by packet.
"""
