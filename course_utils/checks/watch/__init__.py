"""What a check observes while an answer runs: its function calls, devices, messages and collectives."""
