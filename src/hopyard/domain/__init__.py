"""The nouns of the platform as frozen values. This package uses no socket, clock or file."""
