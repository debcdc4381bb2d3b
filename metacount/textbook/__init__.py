"""Applies the formulas to a spec and a run: numbers, closed forms, conventions, what is proven."""

from __future__ import annotations
