"""Stores for the partitions of a frame: Spark writes them, workers read them."""
