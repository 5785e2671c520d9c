"""Chapter 01, Devices."""
