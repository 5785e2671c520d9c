"""Chapter 18, A long run."""
