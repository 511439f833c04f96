"""Where a frame's partitions lie between Spark, which writes them, and the workers, which read them."""
