"""Hopyard: a deep-learning platform in one pip install."""

__version__ = "0.1.0"
