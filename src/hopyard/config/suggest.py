"""Closest matches for a word that nobody knows, as configuration files and the command line tell them."""

from __future__ import annotations

from hopyard.domain.suggest import closest_name, unknown_name_hints

__all__ = ["closest_name", "unknown_name_hints"]
