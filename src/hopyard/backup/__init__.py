"""Backs up a home while its server runs, and restores a backup to a new home."""
