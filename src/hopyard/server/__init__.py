"""The HTTP API: thin routes that authenticate callers, parse requests, call services and return responses."""
