"""Our reference modules on a mesh: the parts they are measured in, and a run of each."""

from __future__ import annotations
