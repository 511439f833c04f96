"""The driver of model hopper parallelism: trials hop between workers, and lost work is repeated."""
