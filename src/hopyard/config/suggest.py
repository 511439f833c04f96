"""Closest matches for an unknown word, for configuration files and the command line."""

from __future__ import annotations

from hopyard.domain.suggest import closest_name, unknown_name_hints

__all__ = ["closest_name", "unknown_name_hints"]
