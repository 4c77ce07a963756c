"""The compiled steps of the engine: ports, switches, hosts, windows.

These modules are loaded once per combination of transports, load balancer and queue policy, under a package name of
their own (see `gradwire.sim.fabric.specialise`): the relative import of `bound` then finds the functions of that
combination.
"""
