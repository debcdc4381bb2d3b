"""What others wrote about a model: transformers' config and module, and the checkpoint's header."""

from __future__ import annotations
