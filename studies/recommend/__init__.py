"""Search of the settings that make a scenario fast, within a budget of runs, and the worth of each setting.

    scenario, knobs -> search (settings, rungs) -> runs -> records -> Recommendation (verdict, ranking, worths, files)

`knobs` names the settings and their values, `search` decides what to run, `space` makes scenarios of settings, `runner`
runs them in the processes of sweeps, `judgement` ranks them, `outcome` presents and writes it.
"""
