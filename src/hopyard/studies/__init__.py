"""Studies at work: inside the user's processes, with the standard library and what the user has.
Design page 0003."""
