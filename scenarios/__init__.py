"""What is asked and what is answered: Scenario, its units and checks, and Result.

This room imports nothing of the other rooms, and importing it is cheap (no NumPy, no pyarrow): the command
line validates a scenario before anything heavy is loaded.

    scenarios.load     load_scenario(path or library name) -> Scenario
    scenarios.schema   the models behind a scenario file
    scenarios.result   Result: the tables a run leaves behind
    scenarios.units    "100Gbps" <-> 100_000_000_000
    scenarios.wire     bytes on a link
    scenarios.errors   what every refusal looks like
"""

__version__ = "0.1.0"
