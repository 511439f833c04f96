"""The runtime of model hopper parallelism: driver, workers and the transport between them."""
