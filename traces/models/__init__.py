"""Models that `gradwire capture` knows by name. Importing this package imports torch only when a model is
built.
"""
