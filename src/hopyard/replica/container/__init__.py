"""Containers: one more way to start the user's process. The replica program itself runs on the node."""
