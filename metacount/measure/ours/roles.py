"""Says which role our own modules give to the tensors they own and to the work they do."""

from __future__ import annotations

from torch import nn

from metacount.modules.altup import AltUp, Copies, Laurel, LayerInput, LayerInputs, LayerTable
from metacount.modules.attention import Attention, ScaledDotProduct
from metacount.modules.borrowed import BorrowingAttention
from metacount.modules.ends import (
    EmbeddingProjection,
    HeadTransform,
    OutputHead,
    Pooler,
    PositionTable,
    TokenEmbedding,
    TypeTable,
)
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.gated_delta import GatedDelta
from metacount.modules.indexer import BlockIndexer, BlockScores, Indexer, IndexScores
from metacount.modules.kimi_delta import KimiDelta
from metacount.modules.lightning import Lightning
from metacount.modules.mamba import Mamba
from metacount.modules.mamba2 import GatedNorm, Mamba2
from metacount.modules.mla import LatentAttention
from metacount.modules.mlstm import MLstm, MultiHeadNorm
from metacount.modules.moe import MixtureOfExperts
from metacount.modules.mtp import PredictionModule
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import RelativeBias, RelativeProjection
from metacount.modules.rg_lru import RecurrentBlock
from metacount.modules.shared_block import AttentionAdapter, FeedForwardAdapter, SharedUse
from metacount.modules.short_conv import ShortConvolution

ROLE_OF: dict[type[nn.Module], str] = {
    TokenEmbedding: "embedding",
    TypeTable: "embedding",
    EmbeddingProjection: "embedding",
    PositionTable: "position",
    RelativeBias: "position",
    RelativeProjection: "position",
    Attention: "attention",
    BorrowingAttention: "attention",
    ScaledDotProduct: "attention",
    LatentAttention: "attention",
    GatedDelta: "recurrent",
    KimiDelta: "recurrent",
    Lightning: "recurrent",
    Mamba: "recurrent",
    Mamba2: "recurrent",
    MLstm: "recurrent",
    SharedUse: "other",  # its linear layer
    AttentionAdapter: "attention",
    FeedForwardAdapter: "ffn",
    Indexer: "attention",
    IndexScores: "attention",
    BlockIndexer: "attention",
    BlockScores: "attention",
    ShortConvolution: "recurrent",
    RecurrentBlock: "recurrent",
    FeedForward: "ffn",
    GatedFeedForward: "ffn",
    MixtureOfExperts: "moe",
    LayerNorm: "norm",
    RMSNorm: "norm",
    GatedNorm: "norm",
    MultiHeadNorm: "norm",
    AltUp: "other",
    Copies: "other",
    Laurel: "other",
    LayerTable: "embedding",
    LayerInputs: "other",  # its projection
    LayerInput: "other",
    PredictionModule: "other",  # its projection; what else it holds has a role of its own
    HeadTransform: "head",
    OutputHead: "head",
    Pooler: "other",
}


def role_of(path: list[nn.Module]) -> str | None:
    """Find the role that the modules from the root to an owner give:
    that of the innermost that has one.

    One exception: in a MoE layer everything but a norm is `moe`, the shared experts' FFN too.
    None where no module on the path has a role.
    """
    adapted = [getattr(module, "base", module) for module in path]  # an adapter is of its layer
    roles = [ROLE_OF[type(module)] for module in adapted if type(module) in ROLE_OF]
    if not roles:
        return None
    return "moe" if "moe" in roles and roles[-1] != "norm" else roles[-1]
