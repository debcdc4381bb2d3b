"""Other projects' kernels as optional variants."""

from __future__ import annotations
