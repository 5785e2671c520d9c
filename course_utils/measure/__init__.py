"""What a step costs: `throughput` in time, `memory` in bytes, `host_memory` in pages;
`intensity` in operations per byte.
"""
