"""Builds and measures transformers' own module of a config."""

from __future__ import annotations
