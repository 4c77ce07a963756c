"""The hot path of an agent in machine code: its loop, its NIC, and its endpoint.

    layout        the records
    timers        the heap of timers, and the clock
    nic_schedule  the NIC's transmission order
    datagrams     batches of outgoing and incoming datagrams
    sending       outgoing packets
    receiving     incoming packets
    loop          waiting for and serving events
    entry         the functions that Python calls

Compiled code handles the frequent cases and calls Python for the rare ones (`ASK_`). A message refers to its
transport's functions by address, so the loop is compiled once, and every transport once
(`gradwire.emu.agent.compiled_agent`).
"""
