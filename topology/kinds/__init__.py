"""Topologies that a scenario can choose, one file each: the keys of the table and the generator of the cables.

A kind is a class derived from `TopologyTable` (`gradwire.scenarios.schema.network.topology`), found by its file. It
must not import NumPy, because reading a scenario imports all kinds. A generator works with plain lists of `Cable`s,
from which `build` (`gradwire.topology.cables`) makes the `Network`. Its `order` keeps neighbours together, pod by pod,
group by group or line by line. Switches of the upper tiers of a tree belong to no pod: they are spread evenly between
the pods, so that equal pieces of the order hold equal shares of work.
"""
