"""The compiled steps of the engine: ports, switches, hosts, windows.

These modules are loaded once per combination of transports, load balancer and queue policy, under their own package
name (see `gradwire.sim.engine.specialization`), so that the relative import of `bindings` finds the functions of that
combination.

Glossary
--------
    Compiled code uses single letters for what occurs everywhere; all but `n`, `i` and times are positions in the state.

        M        the state: one array of 64-bit words (`gradwire.jit.records.constants`)
        th       base of a thread's record (T_)
        node     base of a node's record (N_): a host or a switch
        p        base of an egress port's record (P_); `more`: of the words that most runs do not need (X_)
        c        a class of a port: the queue of a priority, 0 = served first
        f        base of a sender's record (S_); `g`: of a group's, which has the same words
        r        base of a receiver's record (R_)
        s        the record, a sender's or receiver's, that a transport works on: a stream's where there is one
        k        base of the parameter set of a flow's transport
        A, B     the two words of a packet: those for switches, those for transports
        W        base of a process of a program (W_); in `emu.switches.userspace_switch` the state of that switch
        at       the layout in Python code: `from gradwire.protocols import layout as at`. Compiled code imports the
                 words it uses by name

    Other names:

        arena             stretches of the state, allocated and freed (`gradwire.sim.engine.memory.stretch_allocator`)
        book              the message log: a row per message (B_), an array of its own
        merge             the arrivals of a node in one window, from all its ingress links, in order (`merge`)
        binding           the functions of a combination under fixed names (`bindings`), written by `specialization`
        barrier           where the worker threads meet after every window (`engine`, `WorkerThreads`)
        counter-based RNG a draw is a function of a key and a counter (`gradwire.jit.counter_rng`)
        scheduled action  a change by Python at a given time (`Agenda`); an *observer* only reads state
        fan               aggregation group: messages of the same contents between one host and many, which switches
                          sum or copy (FAN_, `aggregation`); `fan` is also the base of its words, `packet` that of the
                          state of one of its packets; a *station* (STATION_), an aggregation node, is a switch at which
                          some or all of them meet
        event             a report of the network: a delivery, the end of a sender or of a part (`sim.engine.events`)
        features          of an engine (`bindings`): DRR, deficit round robin; INT, in-band telemetry; SRPT, the
                          shortest remaining processing time goes first; PFC, priority flow control; ACK_DELAY, delayed
                          acknowledgements; TRIMMING, packets cut to their headers
"""
