"""The scheduling cycle: turns a snapshot of the cluster into a plan (see `planner`)."""
