"""Results of a run: verified reports of agents, and the tables of a Result."""
