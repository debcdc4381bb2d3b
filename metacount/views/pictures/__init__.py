"""Draws with matplotlib: where parameters are, and what benchmarks found."""

from __future__ import annotations
