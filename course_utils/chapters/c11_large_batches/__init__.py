"""Chapter 11, Large batches."""
