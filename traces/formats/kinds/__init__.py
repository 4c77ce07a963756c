"""Formats of traces, one file each: a class derived from `Format` (`gradwire.traces.formats.base`), found by its file.

The code that reads and writes is in the module that it names, and is imported when a file is to be read or written.
"""
