"""Chapter 07, Splitting inside a layer."""
