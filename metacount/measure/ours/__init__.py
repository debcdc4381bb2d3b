"""Measures our reference modules, with roles by the owner of a tensor."""

from __future__ import annotations
