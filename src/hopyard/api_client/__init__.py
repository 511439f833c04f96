"""The HTTP client of the API, and how to find or start a local server."""
