"""The container engine of a node, Docker or Podman: where it listens, and its HTTP interface."""
