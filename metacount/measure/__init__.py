"""Looks at a module and reports what is there: parameters, FLOPs by operator, cache bytes."""

from __future__ import annotations
