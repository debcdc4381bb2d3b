"""Explains a difference: mistakes that together make it, to the last term."""

from __future__ import annotations
