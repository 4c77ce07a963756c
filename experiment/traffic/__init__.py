"""Flows besides jobs.

`kinds` has one file for each kind of `[[traffic]]` table, `tables` asks them for a scenario's flows, and `part` makes a
program's part of these.
"""
