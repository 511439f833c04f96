"""Copying a home while its server runs, and making a home of such a copy."""
