"""Baseline policies for comparison; `registry` finds them by name."""
