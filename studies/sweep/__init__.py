"""Sweeps: many scenarios that differ along axes, each of them a point, and their measures.

    file (TOML) -> SweepFile -> coordinates -> Points (scenario, seed, key) -> Records -> tables and plots

`schema` defines sweep files, `axes` expands their axes, `condition` parses conditions, `points` makes scenarios,
`measures` computes figures, `point_store` stores outcomes, `sweep_tables` and `plots` present them. Only
`gradwire.studies.sweep.runner` simulates, in processes of this machine or on a cluster.
"""
