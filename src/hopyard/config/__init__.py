"""Parses YAML and command-line text into domain values, and knows the paths of the home. All validation of
user input is here, with paths and hints."""
