"""Exchanges of gradients that a job can choose, one file each: the keys of its table, and what it needs of the job.

A kind is a class derived from `ExchangeTable` (`gradwire.scenarios.schema.exchange`), found by its file. No NumPy may
be imported with it, only by the `Exchange` that it makes: whoever reads a scenario imports all of them.
"""
