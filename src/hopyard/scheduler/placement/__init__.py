"""Where gangs go: what every node has left, how much of what fits where, and which of the places that fit is
the best."""
