"""The truth in memory, for as long as the process lives: what the simulator runs on."""
