"""What the command line draws in a terminal."""
