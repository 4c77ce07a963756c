"""Results of runs: tables, their schema, storage and consistency checks, and output folders."""
