"""What it means: metrics, tables and plots computed from Results.

This room reads Results and nothing else: it imports neither `sim` nor `emu`, so a Result of a simulation
and one of an emulated run are told apart only by what they contain.
"""
