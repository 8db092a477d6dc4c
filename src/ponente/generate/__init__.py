"""Checkpoint to tokens: sampling, decoding with a cache of keys and values, and text."""
