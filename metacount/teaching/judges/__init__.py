"""Judges of claims, by subject: each computes what one kind of statement says, as plain values."""
