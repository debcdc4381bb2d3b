"""Compares the two sides: at sizes, witness by witness, and for all sizes."""

from __future__ import annotations
