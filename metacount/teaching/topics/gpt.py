"""The order of computation in a GPT: shapes of a real run, causality, decoding step by step."""

from __future__ import annotations

import re
from functools import cache

import torch

from metacount.flow.run import flow_of_spec
from metacount.formulas import model
from metacount.modules.build import build
from metacount.spec import Request
from metacount.teaching.page import Exercise, asked
from metacount.teaching.parts import value
from metacount.teaching.texts import shown
from metacount.teaching.topics.block import has_experts
from metacount.textbook.count import fitted
from metacount.units import exact, flops, share

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.flow.steps import Step
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("gpt2", "gpt3-175b", "llama-7b", "mixtral-8x7b")
NEEDS = "a decoder with attention and a head, each block with weights of its own"
PROMPT, MORE = 5, 4  # tokens of a small model that are read at once, then one by one
ADDED = ("learned", "sinusoidal")
# sizes of the small model, those that the model has
SMALL = {
    "head_dim": 6,
    "d_ff": 20,
    "d_ff_expert": 10,
    "n_experts": 4,
    "d_ff_shared": 8,
    "n_positions": 40,
    "window": 64,
    "n_groups": 2,
    "top_groups": 1,
    "rotary_dim": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}
WORDS = re.compile(r"[a-z]{3,},? [a-z]{2,}")  # an equation with a sentence in it
# how a step's equation begins -> the same without words, which need no translation
SHORT = {
    "y = (x − mean(x))": "y = LayerNorm(x)",
    "y = x / √(mean(x²)": "y = RMSNorm(x)",
    "q split into heads": "q = [q₁ … q_h]",
    "k split into heads": "k = [k₁ … k_h_kv]",
    "v split into heads": "v = [v₁ … v_h_kv]",
    "heads joined": "out = [out₁ … out_h]",
    "scores = −∞ where": "scores = mask(scores)",
    "weights = softmax([scores, sink])": "A = softmax([scores; sink])",
    "hidden = gate·sigmoid(": "h = gate·σ(β·gate)·up",
    "q = q·(1 + a·ln(": "q = grown(q, position)",
    "bias = −slope": "bias = −m·(i − j)",
    "scores = softmax over": "scores = softmax(logits)",
    "scores = sigmoid": "scores = σ(logits)",
    "for the choice:": "choice = scores + b",
    "top-k:": "top-k",
    "weights = softmax of the k": "α = softmax(top-k logits)",
    "weights = scores of the k": "α = scores[top-k]",
    "weights = weights /": "α = α / Σα",
    "kept = [norm(c), k_r]": "kept = [norm(c), k_r]",
    "q = [q_n, q_r] of each": "q_n of [q_n, q_r]",
    "q = [q_n, q_r], k =": "",
    "[gate, up] = x·W of": "[gate, up] = x·W_e",
    "up = x·W_up of": "up = x·W_up,e",
    "x of each row, times": "x_e = α_e·x",
    "y = hidden·W_down of": "y_e = hidden·W_down,e",
    "y = weight · y": "y_e = α_e·y_e",
    "y of each token": "y = Σ y_e",
    "hidden = (up + 1)": "h = (up + 1)·gate·σ(β·gate)",
}


def fits(spec: ModelSpec) -> bool:
    """Tell whether the steps of the lesson are those of this model."""
    return bool(
        spec.kind == "decoder"
        and spec.attention != "none"
        and spec.n_shared_blocks is None
        and spec.d_embedding is None
        and spec.head is not None
        and spec.position != "transformer_xl"
    )


def steps(here: Here) -> Rows:
    """List the steps of a forward in the order of a run on meta: equation, shape, parameters."""
    found: Rows = []
    _add(flow_of_spec(here.model, Request(), decode=False).steps, found)
    return found


def _add(ran: tuple[Step, ...], found: Rows) -> None:
    for step in ran:
        if step.name.startswith("layers."):
            like = f" = {step.like}" if step.like is not None else ""
            found.append((f"{step.name}{like}:", "", f"×{step.times}", ""))
        equation = short(step.equation)
        if equation and step.outputs:
            letters = step.output_letters[0] if step.output_letters else ()
            shape = "×".join(map(str, step.outputs[0]))
            own = exact(step.params) if step.params else ""
            named = ", ".join(map(str, letters)).replace(" + ", "+")
            found.append((equation, f"[{named}]", shape, own))
        _add(step.inside, found)


def short(equation: str | None) -> str:
    """Shorten a step's equation to one line without words, or to nothing for mere bookkeeping.

    >>> short("y = x / √(mean(x²) + ε) · w"), short("rows sorted by expert, k of them a token")
    ('y = RMSNorm(x)', '')
    """
    if equation is None:
        return ""
    for start, text in SHORT.items():
        if equation.startswith(start):
            return text
    return "" if WORDS.search(equation) else equation


def _shallow(spec: ModelSpec) -> dict[str, int]:
    """Choose as few blocks as show every kind of block."""
    fewest = max(spec.n_dense_layers + 1, spec.moe_every or 1, 1)
    return {"n_layers": min(spec.n_layers, fewest)}


def small(spec: ModelSpec) -> ModelSpec:
    """Shrink a model to one of the same structure that runs in no time."""
    sizes: dict[str, int] = {"d_model": 24, "n_heads": 4, "vocab_size": 31}
    sizes |= {"n_layers": _shallow(spec)["n_layers"] + 1}
    sizes |= {name: n for name, n in SMALL.items() if getattr(spec, name)}
    if spec.n_kv_heads:
        groups = {spec.n_heads: 4, 1: 1}
        sizes["n_kv_heads"] = groups.get(spec.n_kv_heads, 2)
    if spec.is_moe:
        sizes["top_k"] = min(spec.top_k, 2)
    return spec.replace(**sizes)


def decoded(here: Here) -> Rows:
    """Run a prompt at once, then token by token with a cache;
    compare each with a forward of everything.
    """
    return [tuple(map(str, row)) for row in _decoded(small(here.spec))[0]]


@cache
def _decoded(spec: ModelSpec) -> tuple[list[tuple[object, ...]], float, float]:
    """Return the steps, how far they are from a forward of everything, and how far ahead is looked.

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
    """Count the FLOPs of reading a whole sequence, and of one more token, for the model itself."""
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
    return asked(here.spec, "decode_matmul_flops")


VALUES: Values = {
    "steps": steps,
    "batch": lambda here: fitted(here.spec, Request()).batch_size,
    "seq": _prompt,
    "moe": lambda here: has_experts(here.spec),
    "rope": lambda here: here.spec.position == "rope",
    "added": lambda here: here.spec.position in ADDED,
    "prompt": PROMPT,
    "more": MORE,
    "decoded": decoded,
    "off": lambda here: _decoded(small(here.spec))[1],
    "exact": lambda here: _decoded(small(here.spec))[1] == 0,
    "causal": lambda here: _decoded(small(here.spec))[2] < 1e-12,
    "bitwise": lambda here: _decoded(small(here.spec))[2] == 0,
    "ahead": lambda here: _decoded(small(here.spec))[2],
    "small_layers": lambda here: small(here.spec).n_layers,
    "per_token": lambda here: value(small(here.spec), "cache_values"),
    "costs": costs,
    "pre": lambda here: here.spec.norm_placement == "pre",
    "placement": lambda here: here.spec.norm_placement,
    "logit_values": lambda here: here.spec.vocab_size * _prompt(here),
    "score_values": lambda here: here.spec.n_heads * _prompt(here) ** 2,
    "answer": _decode,
    "answer_params": lambda here: asked(here.spec),
}
