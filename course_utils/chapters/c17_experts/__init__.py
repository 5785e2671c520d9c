"""Chapter 17, Experts."""
