"""Pure: searchers. Ask for the next trial, tell what came of it."""
