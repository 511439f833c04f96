"""Trainables: the protocol, loading from the user's code, and adapters for PyTorch and Keras."""
