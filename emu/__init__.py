"""The emulated testbed: scenarios run on network namespaces, kernel queues and real sockets.

The entry point is `gradwire.emu.testbed.emulate`; README.md in this folder describes the architecture.
"""
