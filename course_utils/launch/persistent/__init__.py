"""`Ranks` and `%%ranks`: workers that persist between cells."""
