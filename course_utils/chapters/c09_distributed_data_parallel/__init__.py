"""Chapter 09, Distributed data parallel."""
