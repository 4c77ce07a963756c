"""The compiled steps of the engine: ports, switches, hosts, windows.

These modules are loaded once per combination of transports, load balancer and queue policy, under a package name of
their own (see `gradwire.sim.fabric.specialise`): the relative import of `bound` then finds the functions of that
combination.

Glossary
--------
Compiled code names by single letters what it names everywhere; all but `n`, `i` and times are places in the state.

    M        the state: one array of 64-bit words (`gradwire.components.layout`)
    th       base of a thread's record (T_)
    node     base of a node's record (N_): a host or a switch
    p        base of an egress port's record (P_); `more`: of its words that most runs do not need (X_)
    c        a class of a port: the queue of a priority, 0 = served first
    f        base of a sender's record (S_); `g`: of a group's, which has the same words
    r        base of a receiver's record (R_)
    s        the record, a sender's or receiver's, that a transport works on: a stream's where there is one
    k        base of the parameter set of a flow's transport
    A, B     the two words of a packet: what switches look at, what transports look at
    W        base of a process of a program (W_); in `gradwire.emu.userspace` the state of the userspace switch
    at       the layout in Python code: `from gradwire.components import layout as at`. Compiled code imports the words
             it uses by name

Other names, by what the field calls them.

    arena             stretches of the state, allocated and freed (`gradwire.sim.fabric.stretches`)
    book              what is kept of every message (B_), an array of its own
    merge             the arrivals of a node in one window, of all its ingress links, in order (`merge`)
    binding           the functions of a combination under fixed names (`bound`), written by `specialise`
    barrier           where the worker threads meet after every window (`engine`, `WorkerThreads`)
    counter-based RNG a draw is a function of a key and a counter (`gradwire.components.draws`)
    scheduled action  what Python does to the network at a time (`Agenda`); an *observer* only looks
    fan               messages of the same contents between one host and many, which switches add up or copy (FAN_,
                      `fan`); `fan` is also the base of its words, `packet` that of what is known of one of its packets;
                      a *station* (STATION_) is a switch at which some of them, or all, meet
    event             what the network tells: a delivery, the end of a sender, the end of a part (`sim.fabric.events`)
    features          of an engine (`bound`): DRR, deficit round robin; INT, in-band telemetry; SRPT, the shortest
                      remaining processing time goes first; PFC, priority flow control; ACK_DELAY, acknowledgements that
                      may wait; TRIMMING, packets cut to their headers
"""
