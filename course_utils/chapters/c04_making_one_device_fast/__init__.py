"""Chapter 04, Making one device fast."""
