"""The process that makes workers by forking itself, how the notebook speaks with it, and where ranks meet."""
