"""Passes connections through to the ports of runs."""
