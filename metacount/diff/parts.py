"""The parts of a model, each with what the formulas count of it: what `diff` lays side by side.

>>> from metacount.catalog import entry
>>> from metacount.spec import Workload
>>> for part in parts(entry("mixtral-8x7b").spec(), Workload(seq_len=128)):
...     print(part.name, part.described, part.values["params"])
embedding [32000, 4096] 131072000
positions rope 0
attention GQA 32/8 1342177280
mixture 2 of 8 experts of width 14336, silu(gate) · up 45098205184
norms rmsnorm, pre 266240
head [32000, 4096] 131072000
"""

from __future__ import annotations

from metacount.diff.around import around_parts
from metacount.diff.described import (
    attention_described,
    mixture_described,
    table_described,
    times_d,
)
from metacount.diff.part import Part, part
from metacount.diff.shared import shared_parts
from metacount.formulas import block, ends, indexed, model, stack, sublayers
from metacount.formulas.attention import lettered_layers
from metacount.formulas.dim import Dim
from metacount.formulas.recurrent import mixer_of
from metacount.formulas.terms import Product, Weight, flops_of, params_of
from metacount.notation import activated
from metacount.spec import ModelSpec, Workload
from metacount.spec.attention import NoAttention
from metacount.spec.mla import LatentAttention
from metacount.textbook.closed_form import run_sizes

QUANTITIES = ("params", "active_params", "matmul_flops", "kv_cache_bytes")


def parts(spec: ModelSpec, run: Workload, structure: ModelSpec | None = None) -> tuple[Part, ...]:
    """List the parts of `spec` from the bottom up; their values add up to the model's.

    `structure` is the same spec with numbers for sizes, where `spec` has symbols.
    """
    made = _Parts(spec, structure or spec, run)
    found = [*made.ends_before()]
    for name in ("encoder", "decoder"):
        if getattr(spec, name) is not None:
            found += made.of_stack(name)
    return tuple(one for one in (*found, *made.ends_after()) if one is not None)


class _Parts:
    """Makes the parts of one model and one workload."""

    def __init__(self, spec: ModelSpec, structure: ModelSpec, run: Workload) -> None:
        self.spec, self.plain = spec, structure
        sizes = run_sizes(structure, run)
        self.batch, self.seq = sizes["batch_size"], sizes["seq_len"]
        self.source, self.bytes = sizes["source_len"], sizes["bytes_per_value"]
        self.run = model.forward_run(spec, batch_size=self.batch, seq_len=self.seq)
        self.end_params = ends.end_params(spec)
        self.end_flops = ends.end_flops(spec, n_tokens=self.batch * self.seq)

    def ends_before(self) -> list[Part]:
        """List the tables that tokens and positions are looked up in."""
        spec, plain, found = self.spec, self.plain, []
        if plain.embedding is not None:
            found.append(
                part(
                    "embedding",
                    "table",
                    table_described(plain),
                    self.end_params["embedding"],
                    "embedding",
                    flops=self.end_flops["embedding"],
                )
            )
        if plain.position != "none":
            params = model.params_by_role(spec)["position"]
            word = plain.position
            rows = f", {plain.n_positions} rows" if plain.n_positions else ""
            found.append(
                part(
                    "positions",
                    word,
                    word + rows,
                    params,
                    "positions",
                    flops=self._position_flops(),
                )
            )
        return found

    def _position_flops(self) -> Dim:
        """Count what Transformer-XL multiplies in the blocks of its one stack; others: nothing."""
        if isinstance(self.plain.last_stack.attention, NoAttention):
            return 0
        return self.spec.last_stack.n_layers * self._self_attention(self.seq)["position"]

    def _self_attention(self, n: Dim) -> dict[str, Dim]:
        return block.self_attention_flops(
            self.spec, batch_size=self.batch, n_queries=n, n_keys=n, n_pairs=n * n, absorbed=False
        )

    def of_stack(self, name: str) -> list[Part]:
        """List what the blocks of a stack are made of, and its norms."""
        spec, plain = self.spec, self.plain
        n_layers = getattr(spec, name).n_layers
        cross = plain.has_encoder and name == "decoder"
        tokens = self.source if plain.has_encoder and name == "encoder" else self.seq
        mixer = plain.last_stack.attention
        latent = isinstance(mixer, LatentAttention)
        n_attending = n_layers - stack.borrowing_layers(spec)
        if not plain.last_stack.uniform:
            n_attending = sum(stack.attention_layers(spec))
        found: list[Part] = []
        if not isinstance(mixer, NoAttention) and plain.last_stack.shared is None:
            found.append(
                part(
                    "attention",
                    "mla" if latent else "heads",
                    attention_described(plain),
                    block.self_attention_params(spec),
                    "decoder.attention",
                    stack=name,
                    copies=n_attending,
                    flops=n_attending * self._self_attention(tokens)["attention"],
                    cache=0 if name == "encoder" else self._cache(),
                )
            )
        if cross:
            flops = block.cross_attention_flops(
                spec,
                batch_size=self.batch,
                n_queries=self.seq,
                source_len=self.source,
                cached=False,
            )
            found.append(
                part(
                    "cross-attention",
                    "heads",
                    attention_described(plain),
                    block.gqa_params(spec, sinks=False),
                    "decoder.attention",
                    stack=name,
                    copies=n_layers,
                    flops=n_layers * flops["attention"],
                    cache=self._cross_cache(),
                )
            )
        found += self._indexer(name)
        run = {"batch_size": self.batch, "seq_len": self.seq}
        found += shared_parts(spec, plain, name, self._cache(), **run)
        found += self._recurrent(name)
        found += self._feed_forwards(name, n_layers, self.batch * tokens)
        found += around_parts(spec, plain, name, **run)
        weights = stack.stack_weights(spec, n_layers, cross=cross)
        params = params_of(weight for weight in weights if weight.role == "norm")
        norms = plain.last_stack.norms
        found.append(
            part(
                "norms",
                norms.kind,
                f"{norms.kind}, {norms.placement}",
                params,
                "decoder.norms embedding.norm decoder.attention.qk_norm",
                stack=name,
            )
        )
        return found

    def _indexer(self, name: str) -> list[Part]:
        """List the block indexer, as many blocks as have it; its norms are among the others."""
        spec, said = self.spec, indexed.block_index(self.plain)
        if said is None:
            return []
        copies = indexed.indexed_layers(spec, spec.last_stack.n_layers)
        weights = indexed.index_weights(spec)
        terms: tuple[Weight | Product, ...] = (*weights, *indexed.index_products(spec))
        return [
            part(
                "indexer",
                "blocks",
                f"{said.n_heads} heads, {said.top_blocks} blocks of {said.block_len} positions",
                params_of(weight for weight in weights if weight.role == "attention"),
                "decoder.attention.indexer",
                stack=name,
                copies=copies,
                flops=copies * flops_of(terms, self.run),
                cache=self._index_cache(),
            )
        ]

    def _recurrent(self, name: str) -> list[Part]:
        """List the mixer that keeps a state, as many blocks as have it."""
        spec, recurrent = self.spec, self.spec.last_stack.recurrent
        mixer = mixer_of(recurrent)
        if mixer is None:
            return []
        copies, weights = stack.recurrent_layers(spec), sublayers.recurrent_weights(spec)
        terms: tuple[Weight | Product, ...] = (*weights, *mixer.products(recurrent))
        word: str = vars(type(recurrent))["word"]
        return [
            part(
                "recurrent mixer",
                word,
                word.replace("_", " "),
                params_of(weight for weight in weights if weight.role == "recurrent"),
                "decoder.recurrent decoder.mixer_pattern",
                stack=name,
                copies=copies,
                flops=copies * flops_of(terms, self.run),
            )
        ]

    def _feed_forwards(self, name: str, n_layers: Dim, n_tokens: Dim) -> list[Part]:
        """List the dense feed-forward and the mixture, as many blocks as have each."""
        spec, plain, found = self.spec, self.plain, []
        like, mixture = plain.last_stack.feed_forward, plain.last_stack.mixture
        if like is None or plain.last_stack.shared is not None:
            return []
        act = activated(like.activation, like.swish_beta, gated=like.gated)
        made = "gated" if like.gated else "plain"
        n_moe, n_dense = stack.moe_layers(spec, n_layers), stack.dense_layers(spec, n_layers)
        if like.second is not None:
            n_dense = n_dense - lettered_layers(n_layers, like.second_pattern, "W")
        if like.d_ff is not None:
            flops = block.feed_forward_flops(spec, n_tokens=n_tokens, moe=False)["ffn"]
            found.append(
                part(
                    "feed-forward",
                    made,
                    f"{act}, m = {like.d_ff} = {times_d(like.d_ff, plain)}",
                    block.dense_ffn_params(spec),
                    "decoder.feed_forward",
                    stack=name,
                    copies=n_dense,
                    flops=n_dense * flops,
                )
            )
        if mixture is not None:
            flops = block.feed_forward_flops(spec, n_tokens=n_tokens, moe=True)["moe"]
            found.append(
                part(
                    "mixture",
                    f"{made} mixture",
                    mixture_described(mixture, act),
                    block.moe_layer_params(spec, active=False),
                    "decoder.mixture decoder.feed_forward.activation decoder.feed_forward.gated",
                    stack=name,
                    copies=n_moe,
                    flops=n_moe * flops,
                    active=block.moe_layer_params(spec, active=True),
                )
            )
        return found

    def ends_after(self) -> list[Part]:
        """List the head with what stands before it, and the pooler."""
        plain, found = self.plain, []
        if plain.head is not None and plain.embedding is not None:
            said = table_described(plain)
            said += ", the token table" if plain.head.tied else ""
            params = self.end_params["head"] + self.end_params["norm"]
            found.append(part("head", "head", said, params, "head", flops=self.end_flops["head"]))
        if plain.pooler:
            flops = ends.pooler_flops(self.spec, batch_size=self.batch)["other"]
            found.append(
                part(
                    "pooler",
                    "pooler",
                    "tanh(dense(first token))",
                    self.end_params["other"],
                    "pooler",
                    flops=flops,
                )
            )
        return found

    def _cross_cache(self) -> Dim:
        return model.cross_kv_cache_bytes(
            self.spec, batch_size=self.batch, source_len=self.source, bytes_per_value=self.bytes
        )

    def _cache(self) -> Dim:
        """Count what the self-attention of all layers keeps, without keys of a block indexer."""
        both = model.kv_cache_bytes(
            self.spec,
            batch_size=self.batch,
            seq_len=self.seq,
            bytes_per_value=self.bytes,
            source_len=self.source,
        )
        return both - self._cross_cache() - self._index_cache()

    def _index_cache(self) -> Dim:
        return self.batch * self.seq * self.bytes * indexed.index_cache_values(self.spec)
