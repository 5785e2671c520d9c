"""Chapter 19, Choosing."""
