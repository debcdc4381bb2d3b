"""Places any module on a mesh with torch.distributed, runs it there, and records what it did."""

from __future__ import annotations
