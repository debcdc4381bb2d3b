"""Reads a config.json as data: a config becomes a spec, or one line of error."""

from __future__ import annotations
