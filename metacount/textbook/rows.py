"""The formula of every row of a model's tree, by the row's path in the model.

What has a function in `formulas` is that function; a matrix or a vector is the product of its
sizes, and a module without a function of its own is the sum of its tensors. Every form is of one
copy: of one block, not of all. Sizes are ints or symbols.

>>> from metacount.catalog import entry
>>> rows = Rows(entry("mixtral-8x7b").spec())
>>> rows.form("decoder.layers.31.self_attn.q_proj"), rows.form("decoder.layers.0.mlp")
(16777216, 1409318912)
>>> rows.form("decoder.layers.0.mlp.experts.down_proj")
469762048
>>> Rows(entry("mixtral-8x7b").spec(), symbols=True).form("decoder.layers.0.mlp.gate")
E*d
"""

from __future__ import annotations

from functools import cached_property

from metacount.formulas import block, ends, model, position, stack
from metacount.formulas.dim import Dim, when
from metacount.spec import ModelSpec, legend
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Learned, RelativeBuckets, TransformerXL

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    # The tensors of a module by name: of each its values; below a name, a module's own.
    Tensors: TypeAlias = dict[str, Any]

NORM_SUFFIX = "layernorm"


def in_symbols(spec: ModelSpec) -> tuple[ModelSpec, dict[str, int]]:
    """The spec with a letter for each size that its structure has, and the letters' numbers."""
    sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    sizes = {name: size for name, size in sizes.items() if size}
    if spec.moe_every == 1:
        sizes.pop("moe_every", None)
    letters = legend.sympy_symbols(sizes)
    numbers = {letters[name].name: size for name, size in sizes.items()}
    return spec.substituted(**letters), numbers


class Rows:
    """The forms of one model's rows, in numbers or, with `symbols`, in letters."""

    def __init__(self, spec: ModelSpec, *, symbols: bool = False) -> None:
        self._structure = spec  # which layer is of which kind: always concrete
        self.spec, self.numbers = in_symbols(spec) if symbols else (spec, {})
        self._known: dict[tuple[str, ...], Any] = {}

    def form(self, path: str) -> Dim:
        """The form of the module or tensor at `path`, of one copy.

        Raises `KeyError` for a path that a model of this spec does not have.
        """
        steps = tuple(path.split(".")) if path else ()
        if steps[1:2] == ("layers",) and len(steps) > 2:
            return self._in_block(steps[0], int(steps[2]), steps[3:])
        if not steps:
            return model.params(self.spec)
        if steps[0] in ("encoder", "decoder"):
            return self._in_stack(steps[0], steps[1:])
        return added(below(self._ends, steps))

    def _in_stack(self, name: str, steps: tuple[str, ...]) -> Dim:
        if steps == ("layers",):
            return self._blocks(name)
        if steps:
            return added(below(self._tables(), steps))
        around = self._tables()
        return self._blocks(name) + added(around)

    def _blocks(self, name: str) -> Dim:
        """All blocks of a stack."""
        spec = self.spec
        n_layers = getattr(spec, name).n_layers
        cross = self._has_cross(name)
        n_moe = stack.moe_layers(spec, n_layers)
        found: dict[str, Dim] = {}
        dense = block.block_params(spec, moe=False, cross=cross)
        stack.add(found, dense, times=n_layers - n_moe)
        if spec.last_stack.mixture is not None:
            one = block.block_params(spec, moe=True, cross=cross)
            stack.add(found, one, times=n_moe)
        missing = when(not spec.last_stack.norms.first, block.width_norm_params(spec))
        return sum(found.values()) - missing

    def _has_cross(self, name: str) -> bool:
        return self.spec.has_encoder and name == "decoder"

    def _in_block(self, name: str, index: int, steps: tuple[str, ...]) -> Dim:
        spec, routed = self.spec, self._structure.is_moe_layer(index)
        if not steps:
            one = block.block_params(spec, moe=routed, cross=self._has_cross(name))
            first = index == 0 and not spec.last_stack.norms.first
            return sum(one.values()) - when(first, block.width_norm_params(spec))
        if steps[0].endswith(NORM_SUFFIX):
            return added(below(self._norm(spec.d_model), steps[1:]))
        whole = {
            "self_attn": lambda: (
                block.self_attention_params(spec)
                + block.attention_norm_params(spec)
                + block.position_params(spec)
            ),
            "cross_attn": lambda: block.gqa_params(spec, sinks=False),
            "mlp": lambda: (
                block.moe_layer_params(spec, active=False)
                if routed
                else block.dense_ffn_params(spec)
            ),
        }
        if len(steps) == 1:
            return whole[steps[0]]()
        if steps[0] == "mlp":
            return added(below(self._mixture() if routed else self._dense(), steps[1:]))
        mixer = spec.last_stack.attention
        if isinstance(mixer, LatentAttention):
            return added(below(self._latent(mixer), steps[1:]))
        return added(below(self._grouped(mixer, cross=steps[0] == "cross_attn"), steps[1:]))

    def _norm(self, width: Dim) -> Tensors:
        norms = self.spec.last_stack.norms
        found = {"weight": width} if norms.affine else {}
        return {**found, **({"bias": width} if norms.affine and norms.bias else {})}

    def _grouped(self, part: Attention, *, cross: bool) -> Tensors:
        d, width, kv_width = (self.spec.d_model, part.n_heads * part.head_dim,
                              part.n_kv_heads * part.head_dim)  # fmt: skip
        found: Tensors = {
            "q_proj": matrix(width, d, part.q_bias),
            "k_proj": matrix(kv_width, d, part.k_bias),
            "v_proj": matrix(kv_width, d, part.v_bias),
            "o_proj": matrix(d, width, part.o_bias),
        }
        if cross:
            return found
        widths = (width, kv_width) if part.qk_norm == "full" else (part.head_dim,) * 2
        if part.qk_norm in ("full", "head", "layernorm"):
            for name, size in zip(("q_norm", "k_norm"), widths, strict=True):
                bias = {"bias": size} if part.qk_norm == "layernorm" else {}
                found[name] = {"weight": size, **bias}
        if part.sinks:
            found["core"] = {"sinks": part.n_heads}
        if isinstance(self.spec.positions, TransformerXL):
            found["relative"] = {
                "r_proj": matrix(width, d, False),
                "content_bias": width,
                "position_bias": width,
            }
        return found

    def _latent(self, part: LatentAttention) -> Tensors:
        d, h, bias = self.spec.d_model, part.n_heads, part.bias
        q_width = h * (part.qk_nope_head_dim + part.qk_rope_head_dim)
        rank, q_rank = part.kv_lora_rank, part.q_lora_rank
        found: Tensors = {"q_proj": matrix(q_width, d, False)}
        if q_rank is not None:
            found = {
                "q_a_proj": matrix(q_rank, d, bias),
                "q_a_layernorm": {"weight": q_rank},
                "q_b_proj": matrix(q_width, q_rank, False),
            }
        return {
            **found,
            "kv_a_proj_with_mqa": matrix(rank + part.qk_rope_head_dim, d, bias),
            "kv_a_layernorm": {"weight": rank},
            "kv_b_proj": matrix(h * (part.qk_nope_head_dim + part.v_head_dim), rank, False),
            "o_proj": matrix(d, h * part.v_head_dim, bias),
        }

    def _dense(self) -> Tensors:
        part = self.spec.last_stack.feed_forward
        return feed_forward(self.spec.d_model, part.d_ff, gated=part.gated, bias=part.bias)

    def _mixture(self) -> Tensors:
        spec = self.spec
        part, like = spec.last_stack.mixture, spec.last_stack.feed_forward
        assert part is not None  # who asks has asked whether the layer routes
        d, m, n = spec.d_model, part.d_ff, part.n_experts
        up, wide = ("gate_up_proj", 2 * m) if like.gated else ("up_proj", m)
        experts: Tensors = {up: n * wide * d, "down_proj": n * d * m}
        if part.bias:
            experts |= {f"{up}_bias": n * wide, "down_proj_bias": n * d}
        found: Tensors = {"gate": {"proj": matrix(n, d, part.router_bias)}, "experts": experts}
        shared = part.shared
        if shared is not None:
            width = shared.n_experts * (m if shared.d_ff is None else shared.d_ff)
            found["shared_experts"] = feed_forward(d, width, gated=like.gated, bias=like.bias)
            if shared.gate:
                found["shared_expert_gate"] = {"weight": d}
        return found

    def _tables(self) -> Tensors:
        """What a stack has beside its blocks."""
        spec, positions = self.spec, self.spec.positions
        width, found = ends.table_width(spec), {}
        if isinstance(positions, Learned):
            rows = positions.n_positions
            found["embed_positions"] = {"weight": position.learned_table_params(rows, width)}
            if positions.n_query_positions:
                found["embed_queries"] = {"weight": positions.n_query_positions * spec.d_model}
        if spec.embedding is not None and spec.embedding.norm:
            found["embed_norm"] = self._norm(width)
        if spec.embedding is not None and spec.embedding.width is not None:
            found["embed_proj"] = matrix(spec.d_model, width, True)
        if isinstance(positions, RelativeBuckets):
            table = position.t5_bias_params(positions.n_buckets, spec.last_stack.attention.n_heads)
            found["relative_bias"] = {"relative_attention_bias": {"weight": table}}
        if spec.last_stack.norms.final:
            found["norm"] = self._norm(spec.d_model)
        return found

    @cached_property
    def _ends(self) -> Tensors:
        """What a model has beside its stacks; a tied head's weight is none of its own."""
        spec = self.spec
        d, width = spec.d_model, ends.table_width(spec)
        found: Tensors = {"pooler": {"dense": matrix(d, d, True)}}
        tables, head = spec.embedding, spec.head
        if tables is not None:
            found["embed_tokens"] = {"weight": ends.token_table_params(spec)}
            found["embed_types"] = {"weight": tables.n_token_types * width}
        if tables is not None and head is not None:
            own = {} if head.tied else {"weight": ends.token_table_params(spec)}
            found["lm_head"] = {**own, **({"bias": tables.vocab_size} if head.bias else {})}
            if head.transform is not None:
                dense = matrix(width, d, head.transform.bias)
                found["head_transform"] = {"dense": dense, "norm": self._norm(width)}
        return found


def matrix(rows: Dim, columns: Dim, bias: bool) -> Tensors:
    """A linear layer's tensors: rows × columns, and a bias of as many values as rows."""
    return {"weight": rows * columns, **({"bias": rows} if bias else {})}


def feed_forward(d_model: Dim, width: Dim, *, gated: bool, bias: bool) -> Tensors:
    """The tensors of a feed-forward of two matrices or, with a gate, of three."""
    gate = {"gate_proj": matrix(width, d_model, bias)} if gated else {}
    return {
        **gate,
        "up_proj": matrix(width, d_model, bias),
        "down_proj": matrix(d_model, width, bias),
    }


def below(found: Tensors, steps: tuple[str, ...]) -> Any:
    """What stands at a path below a module."""
    for step in steps:
        found = found[step]
    return found


def added(found: Any) -> Dim:
    """A tensor's values, or the sum of a module's."""
    return sum(map(added, found.values())) if isinstance(found, dict) else found
