"""Trainers whose workers have separate parameters and pull from a server.

One file per system: `asynchronous`, `slimdp`, `mipd`, `mp2`, `wnn`; their scenario tables are in
`gradwire.training.systems`.
"""
