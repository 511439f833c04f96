"""Search files: spaces, searchers, studies."""
