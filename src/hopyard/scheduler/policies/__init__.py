"""The policies to compare with; by name in `registry`."""
