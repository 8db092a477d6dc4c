"""Batches to checkpoints: what a run trains on, and how."""
