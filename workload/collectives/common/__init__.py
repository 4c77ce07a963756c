"""Code that collectives share: buckets, transfer schedules and groups of workers."""
