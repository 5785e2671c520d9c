"""Chapter 08, Processes that talk."""
