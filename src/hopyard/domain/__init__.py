"""Nouns of the platform as frozen values. Nothing here touches a socket, a clock or a file."""
