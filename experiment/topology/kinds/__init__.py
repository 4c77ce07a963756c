"""Topologies that a scenario can choose, one file each: the keys of its table, and the generator of its cables.

A kind is a class derived from `TopologyTable` (`gradwire.scenarios.schema.topology`), found by its file. No NumPy may
be imported with it: whoever reads a scenario imports all of them. A generator works with plain lists of `Cable`s, of
which `build` (`gradwire.experiment.topology.cables`) makes the `Network`; its `order` has side by side what is close
together, pod by pod, group by group or line by line. Switches of the upper tiers of a tree belong to no pod: they are
spread evenly between the pods, so that equal pieces of the order hold equal shares of work.
"""
