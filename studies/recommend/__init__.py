"""Search of the settings that make a scenario fast, within a budget of runs, and the worth of each setting.

    scenario, knobs -> search (settings, rungs) -> runs -> records -> Recommendation (verdict, ranking, worths, files)

`knobs` names the settings and their values and makes scenarios of them, `search` decides what to run and ranks it,
`runner` runs it in the processes of sweeps, `outcome` presents and writes it.
"""
