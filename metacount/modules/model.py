"""The whole model: the tables before the blocks, a stack of blocks or two, the head after them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from metacount.modules.altup import Copies, LayerInputs
from metacount.modules.attention import Visibility
from metacount.modules.block import Block
from metacount.modules.cache import Cache, LayerCache, Lent
from metacount.modules.compressed import HyperHead
from metacount.modules.ffn import activate
from metacount.modules.linear import Linear, Table
from metacount.modules.norm import make_norm
from metacount.modules.position import RelativeBias, alibi_bias, sinusoid
from metacount.modules.shared_block import SharedBlock
from metacount.spec import ModelSpec
from metacount.spec import model as parts
from metacount.spec.attention import NoAttention
from metacount.spec.ffn import FeedForward
from metacount.spec.model import prediction_layers
from metacount.spec.position import Alibi, Learned, RelativeBuckets, Sinusoidal
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


class Stack(nn.Module):
    """Positions, blocks and final norm of an encoder or a decoder."""

    def __init__(self, spec: ModelSpec, *, is_encoder: bool) -> None:
        super().__init__()
        self.spec = spec
        self.kind = "bidirectional" if is_encoder else "causal"
        if spec.kind == "prefix-decoder":
            self.kind = "prefix"
        part = spec.encoder if is_encoder else spec.decoder
        assert part is not None
        tables, positions = spec.embedding, spec.positions
        self.embed_positions = self.embed_queries = self.embed_norm = self.embed_proj = None
        self.relative_bias = self.norm = None
        width = table_width(spec)
        if isinstance(positions, Learned):
            self.embed_positions = PositionTable(positions.n_positions, width)
            if positions.n_query_positions:
                self.embed_queries = PositionTable(positions.n_query_positions, spec.d_model)
        if tables is not None and tables.norm:
            self.embed_norm = make_norm(part.norms, width)
        if tables is not None and tables.width is not None:
            self.embed_proj = EmbeddingProjection(tables.width, spec.d_model, bias=True)
        if isinstance(positions, RelativeBuckets):
            assert not isinstance(part.attention, NoAttention)  # the spec requires it
            self.relative_bias = RelativeBias(
                positions, part.attention.n_heads, bidirectional=is_encoder
            )
        cross = spec.has_encoder and not is_encoder
        self.shared_blocks: nn.ModuleList | None = None
        if part.shared is not None:
            self.shared_blocks = nn.ModuleList(
                SharedBlock(spec) for _ in range(part.shared.n_blocks)
            )
        self.copies = None if part.altup is None else Copies(part.altup, spec.d_model)
        self.hc_head: HyperHead | None = None
        if part.hyper is not None:
            self.hc_head = HyperHead(part.hyper, spec.d_model, norm_eps=part.norms.eps)
        self.n_streams = 0 if part.hyper is None else part.hyper.n_streams
        self.per_layer_inputs: LayerInputs | None = None
        if part.layer_inputs is not None:
            self.per_layer_inputs = LayerInputs(spec, part.layer_inputs, part.n_layers)
        self.layers = nn.ModuleList(Block(spec, i, cross=cross) for i in range(part.n_layers))
        if part.norms.final:
            self.norm = make_norm(part.norms, spec.d_model)
        self.window = part.attention.window
        self.n_heads = 0 if isinstance(part.attention, NoAttention) else part.attention.n_heads

    @property
    def blocks(self) -> list[Block]:
        """The blocks, as what they are: `nn.ModuleList` forgets."""
        return [block for block in self.layers if isinstance(block, Block)]

    def forward(
        self,
        x_BSD: Tensor,
        *,
        cache: Cache | None = None,
        source_BTD: Tensor | None = None,
        prefix_len: int = 0,
        absorbed: bool = False,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Run the stack: [B, S, D] -> [B, S, D]; layers with their own embeddings read `tokens`."""
        start, n = (cache.length if cache else 0), x_BSD.shape[1]
        sees = Visibility(
            n_queries=n,
            n_keys=start + n,
            query_start=start,
            kind=self.kind,
            prefix_len=prefix_len,
        )
        positions = sees.queries(x_BSD.device)
        x_BSD = self._add_positions(x_BSD, positions)
        source_sees = None
        if source_BTD is not None:
            source_sees = Visibility(n_queries=n, n_keys=source_BTD.shape[1], kind="bidirectional")
        query_BSD = None
        if self.embed_queries is not None:
            query_BSD = self.embed_queries(positions).expand_as(x_BSD)
        last, first_BSD = len(self.layers) - 1, x_BSD
        inputs_BSNP = None
        if self.per_layer_inputs is not None:
            assert tokens is not None  # a model with such layers has a vocabulary
            inputs_BSNP = self.per_layer_inputs(tokens, x_BSD)
        if self.copies is not None:
            x_BSD = self.copies.spread(x_BSD)
        if self.n_streams:
            x_BSD = x_BSD.unsqueeze(2).expand(-1, -1, self.n_streams, -1).contiguous()
        reads = any(block.borrows or block.shares_index for block in self.blocks)
        lent = Lent() if reads else None
        firsts: dict[bool, int] = {}  # the first key that is kept, of layers that see as far
        biases: dict[bool, Tensor | None] = {}  # windowed layers share theirs
        beside_BSD: Tensor | None = None  # what experts of the block before gave beside it
        for i, block in enumerate(self.blocks):
            layer_cache = cache.layers[i] if cache and block.attends else None
            first = layer_cache.start if layer_cache else 0
            windowed, shared = block.window is not None, self._shared(i)
            if block.borrows:
                first = firsts[windowed]
            firsts[windowed] = first
            mask = replace(
                sees,
                key_start=first,
                n_keys=start + n - first,
                window=block.window,
                chunked=self.window is not None and self.window.kind == "chunked",
            )
            if windowed not in biases:
                biases[windowed] = self._bias(mask, x_BSD.device)
            given = block(
                x_BSD,
                mask,
                bias=biases[windowed],
                cache=layer_cache,
                query_BSD=query_BSD if i == last else None,
                source_BTD=source_BTD,
                source_visibility=source_sees,
                cross_cache=cache.cross[i] if cache and cache.cross else None,
                absorbed=absorbed,
                states=cache.states[i] if cache else None,
                shared=shared,
                first_BSD=None if shared is None else first_BSD,
                lent=lent,
                input_BSP=None if inputs_BSNP is None else inputs_BSNP[:, :, i],
                tokens=tokens if block.hashed else None,
            )
            x_BSD, next_BSD = given if block.beside else (given, None)
            x_BSD = x_BSD if beside_BSD is None else x_BSD + beside_BSD
            beside_BSD = next_BSD
        if self.copies is not None:
            copies_ABSD = self.copies.gathered(x_BSD)
            x_BSD = copies_ABSD.mean(0)
        if self.hc_head is not None:
            x_BSD = self.hc_head(x_BSD)
        return x_BSD if self.norm is None else self.norm(x_BSD)

    def _shared(self, index: int) -> SharedBlock | None:
        """Return the stored block that layer `index` uses."""
        which = self.spec.last_stack.shared_of(index)
        if which is None or self.shared_blocks is None:
            return None
        block = self.shared_blocks[which]
        assert isinstance(block, SharedBlock)
        return block

    def _add_positions(self, x_BSD: Tensor, positions: Tensor) -> Tensor:
        part = self.spec.positions
        if self.embed_positions is not None:
            x_BSD = x_BSD + self.embed_positions(positions + part.offset)
        elif isinstance(part, Sinusoidal):
            table = sinusoid(positions + part.offset, x_BSD.shape[-1], style=part.style)
            x_BSD = x_BSD + table.to(x_BSD.dtype)
        if self.embed_norm is not None:
            x_BSD = self.embed_norm(x_BSD)
        return x_BSD if self.embed_proj is None else self.embed_proj(x_BSD)

    def _bias(self, sees: Visibility, device: torch.device) -> Tensor | None:
        if self.relative_bias is not None:
            return self.relative_bias(sees.queries(device), sees.keys(device))
        part = self.spec.positions
        if isinstance(part, Alibi):
            bias = alibi_bias(self.n_heads, sees.queries(device), sees.keys(device))
            return bias if part.scale == 1.0 else bias * part.scale
        return None


class Model(nn.Module):
    """A `ModelSpec` as a module that runs."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = self.embed_types = self.lm_head = self.pooler = None
        self.encoder = self.decoder = self.head_transform = None
        width, tables, head = table_width(spec), spec.embedding, spec.head
        if tables is not None:
            self.embed_tokens = TokenEmbedding(tables.vocab_size, width)
            if tables.n_token_types:
                self.embed_types = TypeTable(tables.n_token_types, width)
        if spec.encoder is not None:
            self.encoder = Stack(spec, is_encoder=True)
        if spec.decoder is not None:
            self.decoder = Stack(spec, is_encoder=False)
        if spec.pooler:
            self.pooler = Pooler(spec.d_model)
        if head is not None and self.embed_tokens is not None:
            if head.transform is not None:
                like, norms = spec.last_stack.feed_forward, spec.last_stack.norms
                assert like is not None  # the spec requires it
                self.head_transform = HeadTransform(
                    head.transform, spec.d_model, width, like, norms
                )
            self.lm_head = OutputHead(width, self.embed_tokens.num_embeddings, bias=head.bias)
            if head.tied:
                self.lm_head.weight = self.embed_tokens.weight

    @property
    def last_stack(self) -> Stack:
        """The stack that the head reads: the decoder, or the only one that an encoder has."""
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return stack

    def new_cache(self) -> Cache:
        """Make an empty cache; a windowed layer keeps what the next token can still see."""
        keeps = [None if b.window is None else b.window - 1 for b in self.last_stack.blocks]
        return Cache(keeps, cross=self.spec.has_encoder)

    def encode(self, source: Tensor) -> Tensor:
        """Encode source tokens [B, S] (or, without a vocabulary, states [B, S, D]) -> [B, S, D]."""
        if self.encoder is None or self.decoder is None:
            raise ValueError(f"kind {self.spec.kind} has no encoder to read a source")
        return self.encoder(self.embed(source, None))

    def forward(
        self,
        tokens: Tensor,
        *,
        memory_BTD: Tensor | None = None,
        cache: Cache | None = None,
        token_types: Tensor | None = None,
        prefix_len: int = 0,
        absorbed: bool = False,
    ) -> Output:
        """Run the model: tokens [B, S] (hidden states [B, S, D] without a vocabulary) -> `Output`.

        `memory_BTD` is what `encode` gave (encoder-decoder only). With a cache, `tokens` continue
        what it holds; a prefix must all be in the first forward. `absorbed` chooses MLA's form.
        """
        if (memory_BTD is None) == self.spec.has_encoder:
            raise ValueError("memory_BTD is for an encoder-decoder, which cannot do without it")
        past = 0 if cache is None else cache.length
        if prefix_len > (past or tokens.shape[1]):
            raise ValueError(
                f"prefix_len must be at most the {past or tokens.shape[1]} tokens of the first "
                f"forward: got {prefix_len}; its first tokens see all of it"
            )
        hidden_BSD = self.last_stack(
            self.embed(tokens, token_types),
            cache=cache,
            source_BTD=memory_BTD,
            prefix_len=prefix_len,
            absorbed=absorbed,
            tokens=tokens,
        )
        return Output(
            hidden_BSD=hidden_BSD,
            logits_BSV=self.logits(hidden_BSD),
            pooled_BD=None if self.pooler is None else self.pooler(hidden_BSD),
        )

    def embed(self, tokens: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Embed tokens [B, S] as what the stack reads [B, S, D]; hidden states stay as they are."""
        tables = self.spec.embedding
        if self.embed_tokens is None or tables is None:
            return tokens
        x_BSD = self.embed_tokens(tokens)
        if tables.scale != 1.0:
            x_BSD = x_BSD * tables.scale
        if self.embed_types is not None:
            types = torch.zeros_like(tokens) if token_types is None else token_types
            x_BSD = x_BSD + self.embed_types(types)
        return x_BSD

    def logits(self, hidden_BSD: Tensor) -> Tensor | None:
        """Compute logits [B, S, V] of what the last norm gives [B, S, D]; None without a head."""
        head = self.spec.head
        if self.lm_head is None or head is None:
            return None
        if self.head_transform is not None:
            hidden_BSD = self.head_transform(hidden_BSD)
        logits_BSV = self.lm_head(hidden_BSD)
        if head.scale != 1.0:
            logits_BSV = logits_BSV * head.scale
        if head.softcap is not None:
            logits_BSV = torch.tanh(logits_BSV / head.softcap) * head.softcap
        return logits_BSV


class PredictionModule(nn.Module):
    """One module without the embedding and the head; `spec` is that of `prediction_layers`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        d_model, norms = spec.d_model, spec.last_stack.norms
        self.enorm = make_norm(norms, d_model)
        self.hnorm = make_norm(norms, d_model)
        self.eh_proj = Linear(2 * d_model, d_model, bias=False)
        self.layer = Block(spec, 0)
        self.norm = make_norm(norms, d_model)

    def forward(
        self,
        hidden_BSD: Tensor,
        next_BSD: Tensor,
        *,
        cache: LayerCache | None = None,
        absorbed: bool = False,
    ) -> Tensor:
        """Mix hidden states and embeddings of the next tokens, [B, S, D] each -> [B, S, D]."""
        start, n = (cache.length if cache else 0), hidden_BSD.shape[1]
        sees = Visibility(n_queries=n, n_keys=start + n, query_start=start, kind="causal")
        both_BSE = torch.cat([self.enorm(next_BSD), self.hnorm(hidden_BSD)], dim=-1)
        x_BSD = self.eh_proj(both_BSE)
        return self.layer(x_BSD, sees, cache=cache, absorbed=absorbed)


class MultiTokenPrediction(nn.Module):
    """All prediction modules of a model, which stays what it is: `main` lends its two ends."""

    def __init__(self, main: Model) -> None:
        super().__init__()
        modules = main.spec.prediction
        if modules is None:
            raise ValueError("n_mtp_layers is None: this model has no prediction modules")
        self.main = main
        own = prediction_layers(main.spec)
        self.layers = nn.ModuleList(PredictionModule(own) for _ in range(modules.n_modules))

    @property
    def each(self) -> list[PredictionModule]:
        """Give the modules as what they are: `nn.ModuleList` forgets."""
        return [module for module in self.layers if isinstance(module, PredictionModule)]

    def new_cache(self) -> Cache:
        """Make an empty cache of the modules' layers."""
        return Cache([None for _ in self.layers])

    def forward(
        self,
        hidden_BSD: Tensor,
        next_tokens: Tensor,
        *,
        cache: Cache | None = None,
        absorbed: bool = False,
    ) -> tuple[Tensor, ...]:
        """Turn hidden states [B, S, D] and the tokens after into each module's logits [B, S, V].

        `hidden_BSD` is the model's, as `Output` has it. `next_tokens` are [B, S + n_modules - 1]:
        the token after each position, and as many more as there are further modules, each of which
        reads one place further on.
        """
        n, outputs = hidden_BSD.shape[1], []
        for k, module in enumerate(self.each):
            hidden_BSD = module(
                hidden_BSD,
                self.main.embed(next_tokens[:, k : k + n]),
                cache=cache.layers[k] if cache else None,
                absorbed=absorbed,
            )
            logits_BSV = self.main.logits(module.norm(hidden_BSD))
            assert logits_BSV is not None  # the spec requires a head
            outputs.append(logits_BSV)
        return tuple(outputs)
