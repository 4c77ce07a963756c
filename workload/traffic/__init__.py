"""Flows besides jobs.

One file per kind of `[[traffic]]` table; `tables` collects a scenario's flows, and `flow_part` turns them into a
program part.
"""
