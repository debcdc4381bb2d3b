"""Jobs in parallel processes, and the survey of every type of transformers."""

from __future__ import annotations
