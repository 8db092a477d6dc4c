"""Scores of models: checkpoint → scores."""
