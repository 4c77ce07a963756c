"""Transports, load balancers and queue policies, chosen by name in a scenario and run by simulator and testbed.

Each is a handful of small compiled functions over records (`gradwire.jit.records`): the simulator compiles them into
its engine, and the testbed compiles the same functions for the records of its sockets. `registry` finds one by name, or
in a user's file.
"""
