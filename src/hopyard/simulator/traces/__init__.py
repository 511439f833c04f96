"""Readers of recorded workloads, one per format."""
