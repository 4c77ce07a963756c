"""The simulated network: packet engine, SimPy processes, sessions and `simulate`.

Importing this package is cheap: Numba and pyarrow are imported when a simulation starts, torch never.
"""
