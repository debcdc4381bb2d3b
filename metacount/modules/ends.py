"""The two ends of a model: the tables before the blocks, the transform and the head after them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from metacount.modules.block import make_norm
from metacount.modules.ffn import activate
from metacount.modules.linear import Linear, Table
from metacount.spec import ModelSpec
from metacount.spec import model as parts
from metacount.spec.ffn import FeedForward
from metacount.spec.stack import Norms


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a forward gives; None where the model has no such end."""

    hidden_BSD: Tensor
    logits_BSV: Tensor | None = None
    pooled_BD: Tensor | None = None


def table_width(spec: ModelSpec) -> int:
    """Return the width of the token, token-type and learned position tables."""
    tables, d_model = spec.embedding, spec.d_model
    return d_model if tables is None or tables.width is None else tables.width


class TokenEmbedding(Table):
    """The token table, [V, D]."""


class TypeTable(Table):
    """The token-type (segment) table, [types, D]."""


class OutputHead(Linear):
    """D -> V; with tied embeddings its weight *is* the token table."""


class EmbeddingProjection(Linear):
    """Width of the tables -> D, where the two differ (ELECTRA, arXiv:2003.10555)."""


class HeadTransform(nn.Module):
    """norm(act(W·h)) before the head: BERT's masked-LM head, D -> width of the tables."""

    def __init__(
        self, part: parts.HeadTransform, d_model: int, width: int, like: FeedForward, norms: Norms
    ) -> None:
        super().__init__()
        self.activation, self.swish_beta = like.activation, like.swish_beta
        self.dense = Linear(d_model, width, bias=part.bias)
        self.norm = make_norm(norms, width)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        """Transform the hidden states before the head: [B, S, D] -> [B, S, width]."""
        y = activate(self.dense(hidden_BSD), self.activation, self.swish_beta)
        return self.norm(y)


class PositionTable(Table):
    """A learned table of positions, [rows, D]."""


class Pooler(nn.Module):
    """tanh(W·h + b) of the first token (BERT, arXiv:1810.04805)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model, bias=True)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        """Pool the first token's hidden state: [B, S, D] -> [B, D]."""
        return self.dense(hidden_BSD[:, 0]).tanh()
