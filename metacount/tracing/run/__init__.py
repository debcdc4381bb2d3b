"""Step 1: builds a model with symbols for its sizes, runs it, and writes down what it asks."""

from __future__ import annotations
