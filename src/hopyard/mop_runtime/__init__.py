"""Model hopper parallelism at work: driver, workers and the transport between them."""
