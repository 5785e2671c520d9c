"""Chapter 18, a long run: what its notebook alone needs."""
