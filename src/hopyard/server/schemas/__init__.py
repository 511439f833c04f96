"""Schemas of requests and responses of the API: one module per resource."""
