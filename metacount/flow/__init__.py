"""A model's forward in order, read off a run: whose model it is, and which sizes it is run at."""

from __future__ import annotations
