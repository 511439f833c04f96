"""The driver's side of model hopper parallelism: trials hop between workers, and what is lost on the way is
made good."""
