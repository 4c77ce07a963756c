"""Telemetry of ports: tables and plots."""
