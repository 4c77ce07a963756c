"""Trace formats, one file each with a class derived from `Format` (`gradwire.traces.formats.base`).

The module named by the class reads and writes files, and is imported only when needed.
"""
