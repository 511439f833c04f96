"""The HTTP API: thin routes that authenticate, parse, call and answer."""
