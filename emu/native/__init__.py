"""Machine code of the testbed: what agents and the userspace switch are compiled to, and what it asks of the system.

    calls         memory by address, and system calls
    intrinsics    the same, as Numba has to be told of it
    kept          compiled once, kept with the simulator's engines, loaded without Numba
"""
