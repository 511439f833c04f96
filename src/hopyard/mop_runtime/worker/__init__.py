"""A worker of a study: keeps its partitions open, trains trials on them and evaluates states."""
