"""Schedules in the Group Operation Assembly Language, text and binary."""
