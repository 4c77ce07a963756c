"""The simulated network: the packet fabric, transports, balancers and queues, training jobs, and `simulate`.

Importing it costs nothing: neither Numba nor pyarrow is imported before a simulation starts, and torch never is.
"""
