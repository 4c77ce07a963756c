"""Scenarios: schema, units, validation and loading.

This package imports no other package of gradwire and nothing heavy (no NumPy, no pyarrow), so the command line
validates a scenario before it loads anything large.

    gradwire.scenarios.loading.load      load_scenario(path or library name) -> Scenario
    gradwire.scenarios.schema.scenario   the models behind a scenario file
    gradwire.scenarios.units             "100Gbps" <-> 100_000_000_000
    gradwire.scenarios.wire              bytes on a link
    gradwire.scenarios.errors            errors with location, value and expectation
"""
