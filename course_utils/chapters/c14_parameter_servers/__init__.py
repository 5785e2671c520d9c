"""Chapter 14, Parameter servers."""
