"""What runs in a worker: its surroundings, the call, what it says to the notebook, and the debugger's prompt."""
