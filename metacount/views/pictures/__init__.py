"""Draws with matplotlib: counts by part, caches, activations, and what benchmarks found."""

from __future__ import annotations
