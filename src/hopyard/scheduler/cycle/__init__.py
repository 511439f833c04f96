"""The heart: a snapshot goes in, a plan comes out (see `planner`)."""
