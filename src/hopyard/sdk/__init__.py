"""The user's side: what scripts import, and the HTTP client that the CLI and the replica share.
Standard library only."""
