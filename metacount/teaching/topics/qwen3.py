"""Counting a Qwen3 from its config to its checkpoint, dense or a mixture."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from metacount import catalog
from metacount.algebra.writing import in_letters
from metacount.formulas import model, sublayers
from metacount.spec import DTYPE_BYTES, legend
from metacount.teaching.page import Exercise, asked, closed, rows
from metacount.teaching.texts import evaluated
from metacount.teaching.topics.block import sizes_by_letter
from metacount.units import exact, share, short

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("qwen3-32b", "qwen3-0.6b", "qwen3-235b-a22b")
NEEDS = "a decoder built like Qwen3: RMSNorm before each sublayer and on each head, no biases"
# a config's key -> our name
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "vocab_size": "vocab_size",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "d_ff",
    "moe_intermediate_size": "d_ff_expert",
    "num_experts": "n_experts",
    "num_experts_per_tok": "top_k",
}
# every part from the outside in, in letters
TIED = {"ForCausalLM": "Model"}
UNTIED = {"ForCausalLM": "V*d + Model"}
DENSE = {
    "Model": "V*d + N*Layer + d",
    "Layer": "2*d + Attention + MLP",
    "Attention": "2*d*h*h_d + 2*d*h_kv*h_d + 2*h_d",
    "MLP": "3*d*m",
}
MIXED = {**DENSE, "Layer": "2*d + Attention + MoE", "MoE": "E*d + 3*E*d*m_e"}
ACTIVE = {**MIXED, "MoE": "E*d + 3*k*d*m_e"}
FAMILY = (
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-235b-a22b",
)


def fits(spec: ModelSpec) -> bool:
    """Tell whether the formulas of the lesson are of this model."""
    biases = ("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "norm_bias", "router_bias")
    return bool(
        spec.kind == "decoder"
        and spec.recurrent == "none"
        and spec.qk_norm == "head"
        and spec.norm == "rmsnorm"
        and spec.norm_placement == "pre"
        and spec.gated
        and spec.position == "rope"
        and spec.final_norm
        and spec.head is not None
        and not spec.n_shared_experts
        and not spec.n_dense_layers
        and spec.moe_every == 1
        and not any(getattr(spec, name) for name in biases)
    )


def formulas(spec: ModelSpec, *, active: bool = False) -> dict[str, str]:
    """Write the parts of the model in letters, the whole first."""
    inside = (ACTIVE if active else MIXED) if spec.is_moe else DENSE
    if spec.is_moe:
        inside = {name: text for name, text in inside.items() if name != "MLP"}
    return {**(TIED if spec.tie_embeddings else UNTIED), **inside}


def values(spec: ModelSpec, *, active: bool = False) -> dict[str, int]:
    """Compute the parts in numbers, the innermost first; the whole must be what the model has."""
    known = sizes_by_letter(spec)
    found: dict[str, int] = {}
    for name, text in reversed(formulas(spec, active=active).items()):
        found[name] = known[name] = int(evaluated(text, known))
    counted = model.active_params(spec) if active else model.params(spec)
    if found["ForCausalLM"] != counted:
        raise AssertionError(f"the parts give {found['ForCausalLM']}, the model has {counted}")
    return found


def config(here: Here) -> Rows:
    """List the keys of the config that decide the count."""
    found = []
    for key, name in KEYS.items():
        if name not in legend.ours(key):
            raise AssertionError(f"{key} is not {name} in the legend")
        if value := getattr(here.spec, name):
            found.append((key, legend.by_name(name).letter, value))
    found.append(("tie_word_embeddings", "", str(here.spec.tie_embeddings).lower()))
    return rows(found)


def parts(here: Here, *, active: bool = False) -> Rows:
    """List every part with its formula and its value, from the outside in."""
    found = values(here.spec, active=active)
    return [
        (name, in_letters(text), exact(found[name]))
        for name, text in formulas(here.spec, active=active).items()
    ]


def slip(here: Here) -> int:
    """Count what 2·d in place of 2·h_d for the norms of queries
    and keys would add, over all blocks.
    """
    spec = here.spec
    right = sublayers.qk_norm_params("head", spec.n_heads, spec.n_kv_heads, spec.head_dim)
    return int(spec.n_layers * (2 * sublayers.norm_params(spec.d_model) - right))


def derived_head(here: Here) -> int:
    """Count the parameters there would be with d/h for the width of a head."""
    spec = here.spec
    derived = spec.substituted(head_dim=spec.d_model // spec.n_heads)
    return int(model.params(derived))


@cache
def family() -> Rows:
    """List where the parameters of each model of the family are, in percent."""
    found = []
    for id in FAMILY:
        spec = catalog.entry(id).spec()
        by_role = model.params_by_role(spec)
        whole = sum(by_role.values())
        both_ends = by_role["embedding"] + by_role["head"]
        inner = by_role["ffn"] + by_role["moe"]
        parts_ = (both_ends, by_role["attention"], inner, by_role["norm"])
        found.append((id, short(whole), *(share(p, whole) for p in parts_)))
    return found


@cache
def falls() -> bool:
    """Tell whether the share of the ends falls with size, with tied heads and without."""
    shares: dict[bool, list[Fraction]] = {True: [], False: []}
    for spec in (catalog.entry(id).spec() for id in FAMILY):
        by_role = model.params_by_role(spec)
        ends = by_role["embedding"] + by_role["head"]
        shares[spec.tie_embeddings].append(Fraction(int(ends), int(sum(by_role.values()))))
    return all(each == sorted(each, reverse=True) for each in shares.values())


def checkpoint(here: Here) -> int | None:
    """Return how many values the published checkpoint stores; None where nobody recorded it."""
    entry = here.model.published
    if entry is None or entry.stored_checkpoint is None:
        return None
    return entry.stored_checkpoint.total


def _total(here: Here) -> int:
    return int(model.params(here.spec))


def _moe(here: Here, *, active: bool) -> Fraction:
    by_role = (model.active_params_by_role if active else model.params_by_role)(here.spec)
    return Fraction(int(by_role["moe"]), int(sum(by_role.values())))


def _active(here: Here) -> Exercise:
    if here.spec.is_moe:
        return asked(here.spec, "active_params")
    tied = not here.spec.tie_embeddings
    formula = closed(here.spec.replace(tie_embeddings=tied), "params")
    return Exercise(formula=formula, settings=(f"tie_embeddings={str(tied).lower()}",))


VALUES: Values = {
    "config": config,
    "parts": parts,
    "active_parts": lambda here: parts(here, active=True),
    "params": _total,
    "derived_dim": lambda here: here.spec.d_model // here.spec.n_heads,
    "head_is_free": lambda here: here.spec.head_dim * here.spec.n_heads != here.spec.d_model,
    "derived": derived_head,
    "tie": lambda here: here.spec.tie_embeddings,
    "token_table": lambda here: here.spec.vocab_size * here.spec.d_model,
    "moe": lambda here: here.spec.is_moe,
    "moe_share": lambda here: _moe(here, active=False),
    "active_moe_share": lambda here: _moe(here, active=True),
    "whole_router": lambda here: (
        int(model.active_params(here.spec))
        - here.spec.n_layers * here.spec.d_model * (here.spec.n_experts - here.spec.top_k)
    ),
    "n_qk": lambda here: sublayers.qk_norm_params(
        "head", here.spec.n_heads, here.spec.n_kv_heads, 1
    ),
    "slip": slip,
    "slipped": lambda here: _total(here) + slip(here),
    "layernorm": lambda here: sublayers.norm_params(here.spec.d_model, bias=True),
    "rmsnorm": lambda here: sublayers.norm_params(here.spec.d_model),
    "bytes": lambda here: _total(here) * DTYPE_BYTES["bf16"],
    "per_value": lambda here: DTYPE_BYTES["bf16"],
    "checkpoint": checkpoint,
    "known": lambda here: checkpoint(here) is not None,
    "agrees": lambda here: checkpoint(here) == _total(here),
    "family": lambda here: family(),
    "falls": lambda here: falls(),
    "answer": lambda here: asked(here.spec),
    "answer_more": _active,
}
