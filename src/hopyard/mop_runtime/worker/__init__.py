"""A worker of a study: keeps its partitions open, trains and evaluates on them what the driver asks for."""
