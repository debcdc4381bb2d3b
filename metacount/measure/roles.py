"""Which role a module gives to the tensors it owns and to the work it does."""

from __future__ import annotations

from torch import nn

from ..modules.attention import Attention, ScaledDotProduct
from ..modules.ffn import FeedForward, GatedFeedForward
from ..modules.mla import LatentAttention
from ..modules.model import (
    EmbeddingProjection,
    HeadTransform,
    OutputHead,
    Pooler,
    PositionTable,
    TokenEmbedding,
    TypeTable,
)
from ..modules.moe import MixtureOfExperts
from ..modules.norm import LayerNorm, RMSNorm
from ..modules.position import RelativeBias, RelativeProjection

ROLES = ("embedding", "position", "attention", "ffn", "moe", "norm", "head", "other")

ROLE_OF: dict[type[nn.Module], str] = {
    TokenEmbedding: "embedding",
    TypeTable: "embedding",
    EmbeddingProjection: "embedding",
    PositionTable: "position",
    RelativeBias: "position",
    RelativeProjection: "position",
    Attention: "attention",
    ScaledDotProduct: "attention",
    LatentAttention: "attention",
    FeedForward: "ffn",
    GatedFeedForward: "ffn",
    MixtureOfExperts: "moe",
    LayerNorm: "norm",
    RMSNorm: "norm",
    HeadTransform: "head",
    OutputHead: "head",
    Pooler: "other",
}

# a buffer's name in its module -> ours
BUFFERS = {"e_score_correction_bias": "selection_bias"}


class UnclaimedTensor(LookupError):
    """A parameter under no module that has a role: the count by role would miss it."""


def role_of(path: list[nn.Module]) -> str | None:
    """The role that the modules from the root to an owner give: the innermost one that has one.

    One exception: in a MoE layer everything but a norm is `moe`, the shared experts' FFN too.
    None where no module on the path has a role.
    """
    roles = [ROLE_OF[type(module)] for module in path if type(module) in ROLE_OF]
    if not roles:
        return None
    return "moe" if "moe" in roles and roles[-1] != "norm" else roles[-1]
