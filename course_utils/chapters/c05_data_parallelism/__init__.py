"""Chapter 05, Data parallelism in one process."""
