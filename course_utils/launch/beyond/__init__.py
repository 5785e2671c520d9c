"""Ranks that torchrun's agents start, here or on a cluster's nodes, and export to programs without a notebook."""
