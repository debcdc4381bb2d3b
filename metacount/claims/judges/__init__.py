"""Judges claims, a file for each kind: each function computes what one statement says."""

from __future__ import annotations
