"""The roles that parameters and work are counted under, whoever's module it is."""

from __future__ import annotations

ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")

# a buffer's name in its module -> ours
BUFFERS = {"e_score_correction_bias": "selection_bias", "expert_bias": "selection_bias"}


class UnclaimedTensor(LookupError):
    """A parameter under no module that has a role: the count by role would miss it."""
