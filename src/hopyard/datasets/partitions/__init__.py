"""A dataset version split into partitions once, and reading one.
Runs in users' interpreters: numpy, and what a format needs."""
