"""Chapter 10, Fully sharded."""
