"""What tests share: models, files, servers and slow second opinions."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
