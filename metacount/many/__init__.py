"""Jobs in parallel processes."""

from __future__ import annotations
