"""What a model is and what it runs: frozen parts, their fields, the legend, and the flat names."""

from __future__ import annotations

from metacount.spec.field import MAX_TOKENS
from metacount.spec.model import CHOICES, FIELDS, LIMITS, ModelSpec
from metacount.spec.workload import DTYPE_BYTES, SEQ_LEN, Request, Workload, check_dtype

__all__ = [
    "CHOICES",
    "DTYPE_BYTES",
    "FIELDS",
    "LIMITS",
    "MAX_TOKENS",
    "SEQ_LEN",
    "ModelSpec",
    "Request",
    "Workload",
    "check_dtype",
]
