"""Puts transformers' weights into our modules, each tensor once."""

from __future__ import annotations
