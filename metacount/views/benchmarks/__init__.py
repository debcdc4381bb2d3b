"""Shows benchmarks as text: plans, rows, and one run beside another."""

from __future__ import annotations
