"""Chapter 02, A CUDA kernel."""
