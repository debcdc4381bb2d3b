"""Compares two models part by part, by the formulas alone."""

from __future__ import annotations
