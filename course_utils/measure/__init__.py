"""What a step costs: `throughput` in time, with clocks that wait for the device, and `memory` in bytes, by category."""
