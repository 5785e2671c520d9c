"""Chapter 06, Splitting a model by layers."""
