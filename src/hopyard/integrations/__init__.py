"""Callbacks for the training loops of other frameworks. Each module imports its framework."""
