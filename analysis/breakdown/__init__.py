"""Breakdown of iteration and message times into exact parts."""
