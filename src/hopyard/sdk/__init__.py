"""The SDK: the functions that scripts import. Standard library only."""
