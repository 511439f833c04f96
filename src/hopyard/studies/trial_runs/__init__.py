"""Trials that are runs of their own: the trainer of `parallel: trials`."""
