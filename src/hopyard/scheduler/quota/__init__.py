"""Queues: usage, guarantees, limits, lending, fair shares."""
