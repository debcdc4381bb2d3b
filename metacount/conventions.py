"""One workload under the conventions that people count FLOPs by, each with who uses it.

None of them is wrong: they leave different things out, count different passes, and take a masked
product whole, halved or exactly. Values are exact; the sources say where each is written down.
"""

from __future__ import annotations

from fractions import Fraction

from metacount.formulas import ends, model, stack
from metacount.frozen import frozen
from metacount.resolve import InputError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.spec import ModelSpec, Workload

FORWARD, TRAINING, RECOMPUTED = (
    "forward",
    "training (forward and backward)",
    "training, with recomputation",
)


@frozen
class Amounts:
    """What the conventions are made of, for one workload.

    `params` and `looked_up` are per token; all else are FLOPs of one forward over the workload:
    products with weights, the head's among them, and products between positions - all pairs, and
    exactly those that the mask keeps.
    """

    tokens: int
    params: int
    looked_up: int
    weights: int
    head: int
    pairs: int
    kept_pairs: int
    causal: bool


@frozen
class Convention:
    """One way to count: in words, as a formula of the amounts' letters, with its value and users.

    `value` is of the whole workload, in FLOPs, or in multiply-adds where `unit` says MAC.
    """

    passes: str
    says: str
    formula: str
    value: int
    unit: str
    users: str

    def per_token(self, tokens: int) -> Fraction:
        """The value of one token, exact."""
        return Fraction(self.value, tokens)


def amounts(spec: ModelSpec, workload: Workload) -> Amounts:
    """The amounts of one workload; an `InputError` for a model of two stacks."""
    if spec.has_encoder:
        raise InputError(
            "--conventions are of a model with one stack: an encoder-decoder has tokens of two "
            "kinds, and 6·N of neither; leave it out"
        )
    batch_size, seq_len = workload.batch_size, workload.seq_len
    run = {"batch_size": batch_size, "seq_len": seq_len}
    full = model.matmul_flops(spec, **run)
    causal = model.causal_matmul_flops(spec, **run, prefix_len=workload.prefix_len)
    windowed, everywhere = stack.attention_layers(spec)
    n_tokens = batch_size * seq_len
    blocks = stack.stack_flops(
        spec,
        spec.n_layers,
        # no pairs: what is left are the products with weights
        [(windowed, seq_len, 0), (everywhere, seq_len, 0)],
        batch_size=batch_size,
        n_queries=seq_len,
    )
    own_ends = ends.end_flops(spec, n_tokens=n_tokens)
    pooler = ends.pooler_flops(spec, batch_size=batch_size)
    weights = sum(sum(part.values()) for part in (blocks, own_ends, pooler))
    active = model.active_params_by_role(spec)
    return Amounts(
        tokens=n_tokens,
        params=sum(active.values()),
        looked_up=_looked_up(spec),
        weights=weights,
        head=own_ends["head"],
        pairs=full - weights,
        kept_pairs=causal - weights,
        causal=spec.kind != "encoder",
    )  # fmt: skip


def _looked_up(spec: ModelSpec) -> int:
    """Parameters of the tables before the blocks: tokens, token types, learned positions."""
    rows = spec.n_token_types
    if spec.position == "learned" and spec.n_positions is not None:
        rows += spec.n_positions
    return int(ends.token_table_params(spec) + rows * ends.table_width(spec))


def conventions(spec: ModelSpec, workload: Workload) -> tuple[Convention, ...]:
    """Every convention that has a meaning for the model: an encoder has no causal mask.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> llama = conventions(entry("llama3-8b").spec(), Workload(seq_len=8192))
    >>> [int(c.per_token(8192)) for c in llama if c.formula in ("6·(P - E)", "4·(W + A)")]
    [45029548032, 77217136640]
    """
    a = amounts(spec, workload)
    return tuple(
        Convention(passes=passes, says=says, formula=formula, value=_whole(value),
                   unit="MAC" if formula.endswith("/ 2") else "FLOP", users=users)
        for passes, says, formula, value, users, needs_mask in _table(a)
        if a.causal or not needs_mask
    )  # fmt: skip


def _whole(value: Fraction | int) -> int:
    exact = Fraction(value)
    if exact.denominator != 1:
        raise AssertionError(f"{exact} is no whole number of FLOPs")
    return int(exact)


def _table(a: Amounts) -> list[tuple[str, str, str, Any, str, bool]]:
    """Passes, words, formula, value, users, and whether only a causal mask gives it a meaning."""
    n, half = a.tokens, Fraction(1, 2)
    p, used = n * a.params, n * (a.params - a.looked_up)
    w, full, kept, head = a.weights, a.pairs, a.kept_pairs, a.head
    fused = Fraction(7, 2)  # 1 forward + 2.5 backward: five products for two, scores once more
    return [
        (FORWARD, "2 per parameter, tables left out", "2·(P - E)", 2 * used,
         "Kaplan et al. 2020 (arXiv:2001.08361, sec. 2.1) without its context term", False),
        (FORWARD, "2 per parameter", "2·P", 2 * p,
         "the rule of thumb for inference", False),
        (FORWARD, "products, attention in full", "W + A", w + full,
         "torch's FlopCounterMode; matmul_flops here", False),
        (FORWARD, "products, attention halved", "W + A/2", w + half * full,
         "FlashAttention's benchmark, of its own part", True),
        (FORWARD, "products, attention as masked", "W + C", w + kept,
         "causal_matmul_flops here", True),
        (FORWARD, "multiply-adds, attention in full", "(W + A) / 2", half * (w + full),
         "fvcore's FlopCountAnalysis (and calls it flop), MACs of DeepSpeed's profiler", False),
        (TRAINING, "6 per parameter, tables left out", "6·(P - E)", 6 * used,
         "Kaplan et al. 2020, C = 6·N", False),
        (TRAINING, "6 per parameter", "6·P", 6 * p,
         "Hoffmann et al. 2022 (Chinchilla, arXiv:2203.15556), C = 6·N·D", False),
        (TRAINING, "products, attention as masked", "3·(W + C)", 3 * (w + kept),
         "three times causal_matmul_flops here", True),
        (TRAINING, "products, attention halved", "3·(W + A/2)", 3 * (w + half * full),
         "Megatron-LM today (num_floating_point_operations in training.py)", True),
        (TRAINING, "tables left out, halved, fused backward", "6·(P - E) + 3.5·A/2",
         6 * used + fused * half * full,
         "Meta's lingua and BLT (get_num_flop_per_token)", True),
        (TRAINING, "products, halved, fused backward", "3·W + 3.5·A/2",
         3 * w + fused * half * full,
         "FlashAttention's benchmark (2.5× backward), with the products around it", True),
        (TRAINING, "6 per parameter, attention halved", "6·P + 3·A/2", 6 * p + 3 * half * full,
         "llm.c (gpt2_estimate_mfu): 6·N + 6·L·C·T", True),
        (TRAINING, "products, attention in full", "3·(W + A)", 3 * (w + full),
         "model FLOPs of Korthikanti et al. 2022 (arXiv:2205.05198)", False),
        (TRAINING, "tables left out, attention in full", "6·(P - E) + 3·A", 6 * used + 3 * full,
         "torchtitan: 6·(N - embedding) + 12·l·h·q·t", False),
        (TRAINING, "products, in full, fused backward", "3·W + 3.5·A", 3 * w + fused * full,
         "torch's FlopCounterMode over a fused attention and its backward", False),
        (TRAINING, "6 per parameter, attention in full", "6·P + 3·A", 6 * p + 3 * full,
         "PaLM (arXiv:2204.02311, app. B): 6·N + 12·L·H·Q·T; "
         "nanoGPT, less its position table", False),
        (TRAINING, "multiply-adds, attention in full", "3·(W + A) / 2", 3 * half * (w + full),
         "three times a profiler's MACs", False),
        (RECOMPUTED, "attention's products once more", "3·W + 4·A", 3 * w + 4 * full,
         "selective recomputation (Korthikanti et al. 2022, sec. 5)", False),
        (RECOMPUTED, "the blocks once more, not the head", "4·(W - H + A) + 3·H",
         4 * (w - head + full) + 3 * head,
         "Megatron-LM (Narayanan et al. 2021, arXiv:2104.04473): "
         "96·B·S·l·h²·(1 + S/6h + V/16lh)", False),
        (RECOMPUTED, "everything once more", "4·(W + A)", 4 * (w + full),
         "HFU of MosaicML's llm-foundry", False),
    ]  # fmt: skip
