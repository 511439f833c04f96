"""The state in memory, for the lifetime of the process: used by the simulator."""
