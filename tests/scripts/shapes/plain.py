"""A script without any parameter."""

print("{}")
