"""From YAML and command-line text to domain values; where things lie.
All user-facing validation, with paths and hints."""
