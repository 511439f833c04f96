"""Submits, follows and downloads runs and studies, for the command line and for Python."""
