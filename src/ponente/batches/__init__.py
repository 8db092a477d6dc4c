"""Token cache to batches: which example stands where, and the arrays of any step."""
