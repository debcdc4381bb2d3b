"""Rows of a benchmark: what was timed, saved, and compared with an older run."""

from __future__ import annotations
