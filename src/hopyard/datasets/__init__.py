"""Packs and transfers trees of files by content, and caches read-only trees on a node."""
