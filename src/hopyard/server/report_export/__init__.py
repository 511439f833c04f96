"""Exports a report as one HTML file without scripts."""
