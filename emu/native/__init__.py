"""Machine code of the testbed, for agents and the userspace switch, and its access to the system.

calls         memory by address, and system calls
intrinsics    their Numba definitions
heap          heaps of events and timers
code_cache    compiled once, stored with the simulator's engines, loaded without Numba
"""
