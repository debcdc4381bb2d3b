"""Measures modules that others wrote, with roles by the class that owns a tensor."""

from __future__ import annotations
