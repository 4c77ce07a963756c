"""The real network: Linux network namespaces, kernel queues and sockets that carry the same scenario.

Nothing is implemented here yet. The room exists so that the layout and the installed packages are
already the final ones; `gradwire` offers no emulation command until there is something behind it.
"""
