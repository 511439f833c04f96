"""What a user trains: the protocol, loading it from the user's code, and adapters for PyTorch and Keras."""
