"""Chapter 03, Training on one device."""
