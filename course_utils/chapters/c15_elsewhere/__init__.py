"""Chapter 15, The same ideas elsewhere."""
