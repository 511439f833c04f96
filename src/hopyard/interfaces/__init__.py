"""One Protocol per file: what the rooms above may ask of the rooms below."""
