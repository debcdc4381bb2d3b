"""Reads what a checkpoint stores, from its headers alone."""

from __future__ import annotations
