"""The hot path of an agent in machine code: its loop, its NIC, and its endpoint.

Compiled code handles the frequent cases and calls Python for the rare ones (`ASK_`). A message refers to its
transport's functions by address, so the loop is compiled once, and every transport once
(`gradwire.emu.agent.compiled_agent`).
"""
