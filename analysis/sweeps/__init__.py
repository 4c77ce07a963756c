"""Sweeps: many scenarios that differ along axes, each a point, and what comes of them.

    file (TOML) -> SweepFile -> coordinates -> Points (scenario, seed, key) -> Records -> tables and plots

`schema` says what a file holds, `axes` what its axes choose from, `condition` reads its conditions, `points` makes
scenarios of it, `measures` knows every figure, `store` keeps what has been simulated, `table` and `plots` show it.
Nothing here simulates: `gradwire.sweeping` does, in processes of this machine or on a cluster.
"""
