"""What is asked and what is answered: Scenario, its units and checks, and Result.

This room imports nothing of the other rooms, and importing it is cheap (no NumPy, no pyarrow): the command
line validates a scenario before anything heavy is loaded.

    gradwire.scenarios.load     load_scenario(path or library name) -> Scenario
    gradwire.scenarios.schema.scenario   the models behind a scenario file
    gradwire.scenarios.result   Result: the tables a run leaves behind
    gradwire.scenarios.units    "100Gbps" <-> 100_000_000_000
    gradwire.scenarios.wire     bytes on a link
    gradwire.scenarios.errors   what every refusal looks like
"""
