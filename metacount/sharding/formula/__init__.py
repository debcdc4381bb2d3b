"""What formulas count of a mesh, part by part."""

from __future__ import annotations
