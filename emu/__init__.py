"""The real network: the same scenarios on network namespaces, a real kernel's queues, and real sockets.

`gradwire.emu.testbed.emulate` is the way in; README.md in this folder is the map.
"""
