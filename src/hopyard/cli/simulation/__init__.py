"""`hop simulate`."""
