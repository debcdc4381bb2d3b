"""Spreads a model over a mesh of devices, by torch.distributed on a fake world, and measures it."""

from __future__ import annotations
