"""Gangs as process trees on this machine."""
