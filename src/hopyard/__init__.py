"""Hopyard: a deep-learning platform in one pip install."""
