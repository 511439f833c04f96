"""Files of queues: limits, checks, export."""
