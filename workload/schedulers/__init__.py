"""Schedulers of jobs, one file per kind, with the keys of its table and its decisions.

A kind is a class derived from `SchedulerTable` (`gradwire.scenarios.schema.job.scheduler`), found by its file; its
decisions are a `gradwire.workload.scheduling.Scheduling`. These modules must not import NumPy, since reading a scenario
imports them.
"""
