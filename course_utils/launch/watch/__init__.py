"""The notebook's view of a launch's ranks: messages, output, logged rows, exits, and the final error."""
