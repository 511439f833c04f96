"""One Protocol per file: the interfaces between packages."""
