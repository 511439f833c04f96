"""Searchers, as pure logic: `ask` returns the next trial, `tell` receives its result."""
