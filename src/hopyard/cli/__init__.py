"""The command line: one file per noun, a client of the API like any other."""
