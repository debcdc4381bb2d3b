"""Reads, bounds, compares and writes expressions; knows no model."""

from __future__ import annotations
