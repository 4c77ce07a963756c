"""Schedulers that a job can choose, one file each: the keys of its table, and what it decides.

A kind is a class derived from `SchedulerTable` (`gradwire.scenarios.schema.scheduler`), found by its file; what it
decides is a `gradwire.experiment.scheduling.Scheduling`. No NumPy may be imported with it: whoever reads a scenario
imports all of them.
"""
