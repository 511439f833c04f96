"""Placement: free resources of each node, feasibility of requests, and the best of the feasible nodes."""
