"""Parts of a model that statements are made about, from the formulas, in numbers and in letters."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from metacount import catalog
from metacount.errors import SpecError
from metacount.formulas import feed_forward, model, mtp, pieces, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.ends import table_width
from metacount.formulas.tape import params_of
from metacount.spec import ModelSpec, legend
from metacount.spec.rules import beyond_branches
from metacount.teaching.texts import FUNCTIONS, Known
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    import sympy

    from metacount.catalog import CatalogEntry

BIASES = ("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "router_bias", "expert_bias")
LETTERS = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # d² is the letter d, squared


def without_biases(spec: ModelSpec) -> ModelSpec:
    """Return the same sizes, numbers or letters,
    with the `BIASES` and sinks of the blocks left out.
    """
    return spec.substituted(**dict.fromkeys(BIASES, False), attention_sinks=False)


def check_alike(spec: ModelSpec) -> None:
    """Raise `SpecError` for a hybrid, of which no layer stands for all."""
    if not spec.last_stack.uniform:
        raise SpecError(
            "claim",
            "is about a layer, and the model has several kinds",
            spec.mixer_pattern,
            "name a model whose layers are alike",
        )
    more = beyond_branches(spec)
    if more:
        raise SpecError(
            "claim",
            f"is about attention and a feed-forward, and the model has {more} as well",
            getattr(spec, more),
            "name a model that has these alone",
        )


def _layer(spec: ModelSpec) -> dict[str, Dim]:
    check_alike(spec)
    return sublayers.block_params(spec, moe=spec.is_moe)


def _layer_matrices(spec: ModelSpec) -> Dim:
    check_alike(spec)
    bare = without_biases(spec)
    return sublayers.self_attention_params(bare) + sublayers.dense_ffn_params(bare)


def _layers(spec: ModelSpec) -> Dim:
    return spec.n_layers * sum(_layer(spec).values())


def _moe_layers(spec: ModelSpec) -> Dim:
    return pieces.moe_layers(spec, spec.n_layers)


def _expert(spec: ModelSpec) -> Dim:
    return sublayers.ffn_params(
        spec.d_model, spec.d_ff_expert, gated=spec.gated, bias=spec.expert_bias
    )


def _embeddings(spec: ModelSpec) -> Dim:
    norm = sublayers.norm_params(table_width(spec), bias=spec.norm_bias, affine=spec.norm_affine)
    return sublayers.end_params(spec)["embedding"] + PARTS["positions"](spec) + norm


def _width_norms(spec: ModelSpec) -> Dim:
    check_alike(spec)
    norms = spec.n_layers * sublayers.norms_per_block(spec.norm_placement) + int(
        bool(spec.final_norm)
    )
    return norms * sublayers.width_norm_params(spec)


def _cache_of_every_layer(spec: ModelSpec) -> Dim:
    """Count the cached values of a token, were every block one with attention."""
    return 0 if spec.kind == "encoder" else spec.n_layers * model.kv_cache_values(spec)


def _shared_blocks(spec: ModelSpec) -> Dim:
    """Count the blocks that many layers share; raise `SpecError` where there is none."""
    if spec.n_shared_blocks is None:
        rule = "is needed by a claim about shared blocks"
        raise SpecError("n_shared_blocks", rule, None, "name a model that has some")
    return spec.n_shared_blocks * params_of(sublayers.shared_tapes(spec)[0])


# the same of what only a model with experts has
OF_EXPERTS: dict[str, Callable[[ModelSpec], Dim]] = {
    "expert": _expert,
    "experts": lambda spec: _moe_layers(spec) * spec.n_experts * _expert(spec),
    "active_experts": lambda spec: _moe_layers(spec) * spec.top_k * _expert(spec),
    "moe": lambda spec: sublayers.moe_layer_params(spec, active=False),
    "active_moe": lambda spec: sublayers.moe_layer_params(spec, active=True),
    "moe_flops": lambda spec: sublayers.mixture_flops(spec, 1),
    "router_rows_not_chosen": lambda spec: (
        _moe_layers(spec)
        * sublayers.router_params(spec.d_model, spec.n_experts + spec.n_zero_experts - spec.top_k)
    ),
    "n_experts": lambda spec: spec.n_experts,
    "n_experts_and_shared": lambda spec: spec.n_experts + spec.n_shared_experts,
}
# name -> parameters (or FLOPs of one token, or values of the cache) of that part
PARTS: dict[str, Callable[[ModelSpec], Dim]] = {
    "attention": sublayers.self_attention_params,
    "attention_matrices": lambda spec: sublayers.self_attention_params(without_biases(spec)),
    "ffn": sublayers.dense_ffn_params,
    "ffn_matrices": lambda spec: sublayers.dense_ffn_params(without_biases(spec)),
    "plain_ffn_of_4d": lambda spec: sublayers.plain_params(spec.d_model, 4 * spec.d_model),
    "ffn_flops": lambda spec: sublayers.ffn_matmul_flops(
        1, spec.d_model, spec.d_ff, gated=spec.gated
    ),
    "plain_ffn_of_4d_flops": lambda spec: sublayers.ffn_matmul_flops(
        1, spec.d_model, 4 * spec.d_model, gated=False
    ),
    "norms": lambda spec: _layer(spec)["norm"],
    "layer": lambda spec: sum(_layer(spec).values()),
    "layer_matrices": _layer_matrices,
    "layers": _layers,
    "layers_matrices": lambda spec: spec.n_layers * _layer_matrices(spec),
    "layers_vectors": lambda spec: _layers(spec) - PARTS["layers_matrices"](spec),
    "layers_biases": lambda spec: _layers(spec) - _layers(without_biases(spec)),
    "width_norms": _width_norms,
    "token_table": sublayers.token_table_params,
    "positions": lambda spec: sublayers.learned_table_params(spec.n_positions, spec.d_model),
    "embeddings": _embeddings,
    "head": lambda spec: sublayers.end_params(spec)["head"],
    "pooler": lambda spec: sublayers.end_params(spec)["other"],
    "params": model.params,
    "active_params": model.active_params,
    "active_params_no_embed": model.active_params_no_embed,
    "least_active_params": model.least_active_params,
    "least_active_params_no_embed": lambda spec: (
        model.least_active_params(spec)
        - model.active_params(spec)
        + model.active_params_no_embed(spec)
    ),
    "decode_flops": lambda spec: model.decode_matmul_flops(spec, batch_size=1, kv_len=1),
    "cache_values": lambda spec: model.kv_cache_bytes_per_token(spec, bytes_per_value=1),
    "block_cache_values": model.kv_cache_values,
    "indexed_layers": lambda spec: pieces.indexed_layers(spec, spec.n_layers),
    "cache_of_every_layer": _cache_of_every_layer,
    "cache_saved": lambda spec: (
        _cache_of_every_layer(spec) - model.kv_cache_bytes_per_token(spec, bytes_per_value=1)
    ),
    # of all layers, of one sequence of any length
    "state_values": lambda spec: (
        pieces.recurrent_layers(spec) * sum(state.size for state in model.states(spec))
    ),
    "mtp_params": mtp.params,
    "params_and_mtp": lambda spec: model.params(spec) + mtp.params(spec),
    "mtp_with_copies": lambda spec: sum(mtp.with_copies(spec).values()),
    "shared_blocks": _shared_blocks,
}


@lru_cache
def models() -> tuple[tuple[CatalogEntry, ModelSpec], ...]:
    """Return every model of the catalog that can be built."""
    return tuple((e, e.spec()) for e in catalog.entries() if e.sizes is not None)


def value(spec: ModelSpec, part: str) -> int:
    """Compute a part in numbers."""
    return int(_counted(spec, part))


def _counted(spec: ModelSpec, part: str) -> Dim:
    if part not in OF_EXPERTS:
        return PARTS[part](spec)
    if not spec.is_moe:
        rule = "is needed by a claim about experts"
        raise SpecError("n_experts", rule, None, "name a model that has some")
    return OF_EXPERTS[part](spec)


def letters(spec: ModelSpec, part: str) -> sympy.Expr:
    """Write a part as a SymPy expression in the legend's letters;
    what the model lacks is left out.
    """
    import sympy

    from metacount.textbook.closed_form import readable

    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name)]
    if spec.moe_every == 1 and "moe_every" in names:
        names.remove("moe_every")
    in_symbols = spec.substituted(**legend.sympy_symbols(names))
    return readable(sympy.sympify(_counted(in_symbols, part)))


def in_numbers(text: str, spec: ModelSpec) -> str:
    """Replace each letter in the text of a formula by its number."""
    sizes = {t.letter: getattr(spec, t.name) for t in legend.MODEL_TERMS}
    return LETTERS.sub(lambda name: str(sizes.get(name[0]) or name[0]), text)


def computation(spec: ModelSpec, part: str) -> str:
    """Write a part in letters, with numbers put in, and what it comes to.

    >>> computation(catalog.entry("llama-7b").spec(), "attention")
    '2·d·h_d·(h + h_kv) = 2·4096·128·(32 + 32) = 67,108,864'
    """
    from metacount.algebra.text import in_letters

    text = in_letters(letters(spec, part))
    steps = [text, in_numbers(text, spec), exact(value(spec, part))]
    return " = ".join(dict.fromkeys(steps))


# what takes a length, or a number of sequences and a length
RUNS: dict[str, Callable[..., Dim]] = {
    "matmul_flops": lambda spec, n: model.matmul_flops(spec, batch_size=1, seq_len=n),
    "causal_matmul_flops": lambda spec, n: model.causal_matmul_flops(spec, batch_size=1, seq_len=n),
    "decode_matmul_flops": lambda spec, b, n: model.decode_matmul_flops(
        spec, batch_size=b, kv_len=n
    ),
    "kept_values": lambda spec, b, n: model.kv_cache_bytes(
        spec, batch_size=b, seq_len=n, bytes_per_value=1
    ),
}


class Subject(Known):
    """What the names in a text about a model stand for.

    Values, and as functions: those of the modules that the text uses; parts and sizes of the model,
    of another one (`ffn("llama-7b")`) or of the same with other fields (`ffn(gated=False)`); what
    takes a length (`RUNS`); and the formulas of sublayers by their sizes,
    `glu_params(4*d_model, d_ff)`.
    """

    uses: tuple[ModuleType, ...] = ()

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        raise NotImplementedError

    def call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> object:
        """Call a function of a file, compute a part or a run, look up a size, or use a formula."""
        for module in self.uses:
            if (function := getattr(module, name, None)) is not None:
                return function(*arguments, **options)
        if name in FUNCTIONS:
            return super().call(name, arguments, options)
        if name in RUNS:
            return int(RUNS[name](self.spec.replace(**options), *arguments))
        formula = getattr(sublayers, name, None) or getattr(feed_forward, name, None)
        if name not in (*PARTS, *OF_EXPERTS) and formula is not None:
            return formula(*arguments, **options)
        other = arguments[0] if arguments else self.spec
        spec = catalog.entry(other).spec() if isinstance(other, str) else other
        spec = spec.replace(**options) if options else spec
        known = name in PARTS or name in OF_EXPERTS
        return value(spec, name) if known else getattr(spec, name)
