"""Judges of claims about training: what a step multiplies, what is kept and stored for it."""
