"""The HTTP client of the API, and the way to a local server."""
