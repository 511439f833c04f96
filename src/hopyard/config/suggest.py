"""Closest matches for a word that nobody knows, as configuration files and the command line tell them."""

from __future__ import annotations

from hopyard.domain.suggest import closest, hints_for

__all__ = ["closest", "hints_for"]
