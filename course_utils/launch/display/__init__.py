"""What a notebook or terminal shows of ranks: while they run, at their end, and after a failure."""
