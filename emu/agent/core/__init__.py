"""The hot path of an agent in machine code: its loop, its NIC, and its endpoint.

    layout       where every word is
    calls        system calls and memory by address (intrinsics: what Numba has no name for)
    timers       the heap of timers, and the clock
    turns        the NIC: whose turn it is
    datagrams    arenas of datagrams on their way out and in
    packets      what arrives, and what leaves
    loop         waiting, and serving what it has waited for

Compiled code goes round until something is rare, and then asks Python by a call (`ASK_`). Which transport a message has
says the address of its functions, so the loop is compiled once, and every transport once
(`gradwire.emu.agent.machine`).
"""
