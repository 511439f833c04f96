"""`hop search` and its commands."""
