"""Chapter 13, Many machines."""
