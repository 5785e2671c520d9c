"""Chapter 12, Pipelines and split layers."""
