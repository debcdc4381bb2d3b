"""The order of computation in a GPT: shapes of a real run, causality, decoding step by step."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from metacount.claims.parts import value
from metacount.formulas import block, ends, model
from metacount.lessons.answers import closed
from metacount.lessons.here import rows, shown
from metacount.lessons.matrices import has_experts, matrices
from metacount.lessons.page import Exercise
from metacount.lessons.parts.block import vectors
from metacount.modules.build import build
from metacount.spec import Request
from metacount.textbook.count import fitted
from metacount.units import flops, share

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.lessons.here import Here, Rows, Values
    from metacount.spec import ModelSpec, Workload

SUCH_AS = ("gpt2", "gpt3-175b", "llama-7b", "mixtral-8x7b")
NEEDS = "a decoder with key/value heads and a norm before each sublayer"
PROMPT, MORE = 5, 4  # tokens of a small model that are read at once, then one by one
ADDED = {"learned": "P", "sinusoidal": "P"}
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU", "silu": "SiLU"}


def fits(spec: ModelSpec) -> bool:
    """Whether the steps of the lesson are those of this model."""
    return bool(
        spec.kind == "decoder"
        and spec.kv_lora_rank is None
        and spec.norm_placement == "pre"
        and spec.first_norm
        and spec.d_embedding is None
        and spec.head is not None
        and spec.position != "transformer_xl"
    )


def steps(here: Here) -> Rows:
    """Every step of a forward: equation, shape in letters and numbers, parameters."""
    spec, run = here.spec, fitted(here.spec, Request())
    moe = has_experts(spec)
    known = {m.name: m.params for m in matrices(spec)}
    norms = int(block.width_norm_params(spec))
    sizes = _sizes(spec, run)
    act = ACTIVATIONS.get(spec.activation, spec.activation)
    qkv = sum(known[n] for n in ("q_proj", "k_proj", "v_proj"))
    found: list[tuple[str, str, int]] = [
        ("x = E[ids]", "B S d", value(spec, "token_table"))]  # fmt: skip
    if spec.position in ADDED:
        found.append(("x = x + P[0 … S−1]", "B S d", int(model.params_by_role(spec)["position"])))
    found += [
        ("a = Norm(x)", "B S d", norms),
        ("Q, K, V = a·Wᵀ, in heads", "B h S h_d", qkv),
        *([("Q, K = rotate(Q, K)", "B h S h_d", 0)] if spec.position == "rope" else []),
        ("scores = Q·Kᵀ/√h_d", "B h S S", 0),
        ("A = softmax(mask(scores))", "B h S S", 0),
        ("C = A·V", "B h S h_d", 0),
        ("y = concat(C)·W_Oᵀ", "B S d", known["o_proj"]),
        ("x = x + y", "B S d", 0),
        ("a = Norm(x)", "B S d", norms),
    ]
    inner = int(sum(m.params for m in matrices(spec) if m.part == "ffn"))
    if moe:
        found.append(("z = a·W_rᵀ, top-k", "B S E", known["router"]))
        found.append(("y = Σ α_e·f_e(a)", "B S d", inner - known["router"]))
    elif spec.gated:
        found.append((f"u = {act}(a·W₁ᵀ) ⊙ a·W₃ᵀ", "B S m", known["gate_proj"] + known["up_proj"]))
        found.append(("y = u·W₂ᵀ", "B S d", known["down_proj"]))
    else:
        found.append((f"u = {act}(a·W₁ᵀ)", "B S m", known["up_proj"]))
        found.append(("y = u·W₂ᵀ", "B S d", known["down_proj"]))
    found.append(("x = x + y", "B S d", 0))
    end: list[tuple[str, str, int]] = []
    if spec.final_norm:
        end.append(("x = Norm(x)", "B S d", norms))
    end.append(("logits = x·Eᵀ" if spec.tie_embeddings else "logits = x·W_Vᵀ", "B S V",
                int(ends.end_params(spec)["head"])))  # fmt: skip
    _check(spec, run, sizes)
    before = 1 + (spec.position in ADDED)
    table = [_row(s, sizes) for s in found[:before]]
    table.append((f"× {spec.n_layers}:", "", "", ""))
    table += [_row(s, sizes) for s in found[before:]]
    table.append((here.say("then:"), "", "", ""))
    return rows([*table, *(_row(s, sizes) for s in end)])


def _row(step: tuple[str, str, int], sizes: dict[str, int]) -> tuple[object, ...]:
    equation, letters, params = step
    names = letters.split()
    shape = "×".join(str(sizes[n]) for n in names)
    return equation, f"[{', '.join(names)}]", shape, params or ""


def _sizes(spec: ModelSpec, run: Workload) -> dict[str, int]:
    return {"B": run.batch_size, "S": run.seq_len, "d": spec.d_model, "h": spec.n_heads,
            "h_d": spec.head_dim, "m": spec.d_ff, "V": spec.vocab_size,
            "E": spec.n_experts}  # fmt: skip


def _check(spec: ModelSpec, run: Workload, sizes: dict[str, int]) -> None:
    """The shapes of the steps, and their order, are those of a run of the module on meta."""
    built = build(spec.replace(**_shallow(spec)), device="meta")
    seen: list[tuple[str, tuple[int, ...]]] = []

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.append((name.rpartition(".")[2], tuple(output.shape)))

        return hook

    one = built.last_stack.blocks[-1]
    watched = [n for n, _ in one.named_modules() if n and "experts" not in n and "gate." not in n]
    for name in watched:
        one.get_submodule(name).register_forward_hook(keep(name))
    for name in ("embed_tokens", "lm_head"):
        built.get_submodule(name).register_forward_hook(keep(name))
    with torch.no_grad():
        built(torch.zeros(run.batch_size, run.seq_len, dtype=torch.long, device="meta"))
    shapes = dict(seen)
    expected = {"embed_tokens": "B S d", "core": "B h S h_d", "o_proj": "B S d"}
    if not has_experts(spec):
        expected |= {"up_proj": "B S m", "down_proj": "B S d"}
    expected |= {"lm_head": "B S V"}
    order = [name for name, _ in seen if name in expected]
    if sorted(order, key=list(expected).index) != order or set(expected) != set(order):
        raise AssertionError(f"the run's order is {order}, the lesson's {list(expected)}")
    for name, letters in expected.items():
        if shapes[name] != tuple(sizes[n] for n in letters.split()):
            raise AssertionError(f"{name}: the run gives {shapes[name]}, the lesson {letters}")


def _shallow(spec: ModelSpec) -> dict[str, int]:
    """As few blocks as show every kind of block."""
    fewest = max(spec.n_dense_layers + 1, spec.moe_every or 1, 1)
    return {"n_layers": min(spec.n_layers, fewest)}


def small(spec: ModelSpec) -> ModelSpec:
    """A model of the same structure that runs in no time."""
    sizes: dict[str, Any] = {"d_model": 24, "n_heads": 4, "head_dim": 6, "vocab_size": 31}
    sizes |= {"n_layers": _shallow(spec)["n_layers"] + 1}
    sizes["n_kv_heads"] = 4 if spec.n_kv_heads == spec.n_heads else 1 if spec.n_kv_heads == 1 else 2
    sizes |= {
        k: v
        for k, v in {
            "d_ff": 20,
            "d_ff_expert": 10,
            "n_experts": 4,
            "d_ff_shared": 8,
            "n_positions": 40,
            "window": 64,
        }.items()
        if getattr(spec, k)
    }
    if spec.is_moe:
        sizes["top_k"] = min(spec.top_k, 2)
    if spec.n_groups:
        sizes |= {"n_groups": 2, "top_groups": 1}
    if spec.rotary_dim:
        sizes["rotary_dim"] = 4
    return spec.replace(**sizes)  # fmt: skip


def decoded(here: Here) -> Rows:
    """A prompt at once, then token by token with a cache; each against a forward of everything."""
    return [tuple(map(str, row)) for row in _decoded(small(here.spec))[0]]


@cache
def _decoded(spec: ModelSpec) -> tuple[list[tuple[object, ...]], float, float]:
    """The steps, how far they are from a forward of everything, and how far ahead is looked.

    The last: the largest difference that another last token makes to earlier logits.
    """
    made = build(spec, device="cpu", dtype="fp64", seed=0)
    tokens = torch.arange(PROMPT + MORE).remainder(spec.vocab_size)[None]
    found: list[tuple[object, ...]] = []
    worst = 0.0
    with torch.no_grad():
        whole = made(tokens).logits_BSV
        cache_ = made.new_cache()
        start = 0
        for end in (PROMPT, *range(PROMPT + 1, PROMPT + MORE + 1)):
            logits = made(tokens[:, start:end], cache=cache_).logits_BSV
            off = float((logits - whole[:, start:end]).abs().max())
            worst = max(worst, off)
            kept = sum(t.numel() for t in cache_.tensors())
            found.append((end, list(tokens[:, start:end].shape), list(logits.shape), kept))
            start = end
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % spec.vocab_size
        other = made(changed).logits_BSV
        ahead = float((whole[:, :-1] - other[:, :-1]).abs().max())
        seen = float((whole[:, -1] - other[:, -1]).abs().max())
    if seen < 1e-3:
        raise AssertionError("another token made no difference: nothing was tried")
    if worst > 1e-9:
        raise AssertionError(f"decoding with a cache is off by {worst}")
    return found, worst, ahead


def costs(here: Here) -> Rows:
    """FLOPs of reading a whole sequence, and of one more token, for the model itself."""
    spec, run = here.spec, fitted(here.spec, Request())
    n = run.seq_len
    whole = int(model.matmul_flops(spec, batch_size=1, seq_len=n))
    single = int(model.decode_matmul_flops(spec, batch_size=1, kv_len=n))
    return [
        (here.say("read"), shown(n), flops(whole), "100 %"),
        (here.say("one more"), "1", flops(single), share(single, whole)),
    ]


def _prompt(here: Here) -> int:
    return fitted(here.spec, Request()).seq_len


def _decode(here: Here) -> Exercise:
    return Exercise(
        formula=closed(here.spec, "decode_matmul_flops"), quantity="decode_matmul_flops"
    )


VALUES: Values = {
    "steps": steps,
    "batch": lambda here: fitted(here.spec, Request()).batch_size,
    "seq": _prompt,
    "moe": lambda here: has_experts(here.spec),
    "rope": lambda here: here.spec.position == "rope",
    "added": lambda here: here.spec.position in ADDED,
    "prompt": lambda here: PROMPT,
    "more": lambda here: MORE,
    "decoded": decoded,
    "off": lambda here: _decoded(small(here.spec))[1],
    "exact": lambda here: _decoded(small(here.spec))[1] == 0,
    "causal": lambda here: _decoded(small(here.spec))[2] < 1e-12,
    "bitwise": lambda here: _decoded(small(here.spec))[2] == 0,
    "ahead": lambda here: _decoded(small(here.spec))[2],
    "small_layers": lambda here: small(here.spec).n_layers,
    "per_token": lambda here: value(small(here.spec), "cache_values"),
    "costs": costs,
    "biases": lambda here: vectors(here.spec),
    "logit_values": lambda here: here.spec.vocab_size * _prompt(here),
    "score_values": lambda here: here.spec.n_heads * _prompt(here) ** 2,
    "answer": _decode,
    "answer_params": lambda here: Exercise(formula=closed(here.spec, "params")),
}
