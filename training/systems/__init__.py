"""Systems, one file each: how workers and servers keep their parameters together, where it is not one mean gradient.

A system is a table of a scenario, `training.system`; what carries it out is in `gradwire.training.served`.
"""
