"""Splits a dataset version into partitions once, and reads partitions. Runs in users' interpreters: needs
numpy, and the library of the format."""
