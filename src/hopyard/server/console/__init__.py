"""Passes consoles of users through to the replicas of live runs."""
