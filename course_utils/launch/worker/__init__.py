"""What runs in a worker: its set-up, the call, its messages to the notebook, and the debugger's prompt."""
