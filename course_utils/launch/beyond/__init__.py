"""Ranks that torchrun's agents start, here or on the nodes of a cluster; and programs that run without a notebook."""
