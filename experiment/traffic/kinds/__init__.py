"""Kinds of traffic that a scenario can choose, one file each: the keys of its table, what it needs, and its flows.

A kind is a class derived from `Traffic` (`gradwire.scenarios.schema.traffic`), found by its file. No NumPy may be
imported with it, only by what makes the flows: whoever reads a scenario imports all of them.
"""
