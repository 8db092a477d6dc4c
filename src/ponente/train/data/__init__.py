"""What a run trains on: the data section of a config, from caches to batches, and a look at them."""
