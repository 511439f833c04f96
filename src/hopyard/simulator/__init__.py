"""The second composition root beside `app`: the real controller, policy and store over an engine whose runs
only take time."""
