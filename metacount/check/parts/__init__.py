"""Names the parts that each count is the sum of."""

from __future__ import annotations
