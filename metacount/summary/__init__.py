"""What a person has in hand, measured without touching it, and shown by itself."""

from __future__ import annotations
