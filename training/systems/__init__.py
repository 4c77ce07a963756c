"""Systems, one file each: ways to keep the parameters of workers and servers together other than one mean gradient.

A system is a table of a scenario, `training.system`; its trainer is in `gradwire.training.parameter_server`.
"""
