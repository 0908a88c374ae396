"""Checkpoints: where they come from, how they are stored, and the proof that we read them right."""
