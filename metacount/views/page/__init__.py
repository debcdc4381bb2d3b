"""One page for a browser: models whose closed forms it evaluates, at sizes that a reader chooses."""

from __future__ import annotations
