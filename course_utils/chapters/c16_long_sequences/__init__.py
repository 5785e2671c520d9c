"""Chapter 16, Long sequences."""
