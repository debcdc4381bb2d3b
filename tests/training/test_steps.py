"""A step of every structure of the catalog, and of others beside them: by formula, and measured.

All of a model is trained, or a part of it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.release import chosen, daily, one_in
from helpers.steps import (
    Uncovered,
    all_but,
    both,
    compare,
    differing,
    without_formula,
    workload,
)
from helpers.structures import with_logits

import metacount
from metacount import Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import attention, block, ends, feed_forward, folds, tape
from metacount.formulas.attention import Attending
from metacount.formulas.step import Part, chosen_tensors, tensors_by_path
from metacount.formulas.tape import CHECKPOINTINGS, Pass, Tape
from metacount.spec import DTYPE_BYTES, ModelSpec
from metacount.spec.field import altered
from metacount.spec.stack import BESIDE
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import block_bytes, block_kinds, count_step

Changes = dict[str, Any]


def small(name: str, **changes: Any) -> ModelSpec:
    """A miniature of a model of the catalog; of no name, the first of all."""
    spec = miniature(entry(name).spec()) if name else ModelSpec.from_dict(TINY)
    return spec.replace(**changes)


def kinds(spec: ModelSpec) -> list[tuple[Any, ...]]:
    """What distinguishes each layer."""
    last = spec.last_stack
    asks = (last.mixer_of, last.ffn_of, spec.is_moe_layer, spec.is_windowed_layer)
    asks = (*asks, spec.has_rope_layer, spec.has_index_layer)
    return [tuple(ask(index) for ask in asks) for index in range(spec.n_layers)]


def short(spec: ModelSpec) -> ModelSpec:
    """Three layers where all are of a kind; shared blocks used more often than they are stored."""
    if spec.last_stack.shared is not None:
        return spec.replace(n_layers=5)
    return spec.replace(n_layers=3) if len({*kinds(spec)}) == 1 else spec


STRUCTURES = {name: short(spec) for name, spec in with_logits().items()}
WITH_STATE = [
    name for name, spec in STRUCTURES.items() if spec.recurrent != "none" or spec.n_index_heads
]
# attention, checkpointing, dtype, batch size
Way = tuple[str, str, str, int]
WAYS: list[Way] = [
    (attends, checkpointing, "bf16" if attends == "flash" else dtype, batch_size)
    for (dtype, batch_size), checkpointing, attends in product(
        (("bf16", 3), ("fp32", 1)), ("full", "none", "selective"), ("eager", "flash", "sdpa")
    )
]
# what of a model is trained
PARTS: dict[str, Changes] = {
    "adapters of some": {"lora_rank": 3, "lora_targets": ("o_proj", "down_proj")},
    "adapters of all": {"lora_rank": 2, "lora_targets": ("all-linear",)},
    "upper layers": {"freeze": ("embed_tokens", "layers.0", "embed_positions")},
    "no matrix of attention": {"freeze": ("self_attn", "embed_tokens")},
    "no feed-forward": {"freeze": ("mlp",)},
    "norms alone": {"freeze": ("self_attn", "cross_attn", "mlp", "embed_tokens", "lm_head")},
}
# all of each structure in every way; each part of it in one
CASES: list[tuple[str, str, Way]] = [
    *((name, "", way) for name, way in product(STRUCTURES, WAYS)),
    *(
        (name, part, WAYS[(5 * i + j) % len(WAYS)])
        for (i, name), (j, part) in product(enumerate(STRUCTURES), enumerate(PARTS))
    ),
]


def always(number: int) -> bool:
    """Whether every run tries a case: one way of each structure, a part of every second one.

    Of mixers also one of those ways in which blocks are run again.
    """
    if number < len(STRUCTURES) * len(WAYS):
        structure, way = divmod(number, len(WAYS))
        again = list(STRUCTURES)[structure] in WITH_STATE and way == (0, 9)[structure % 2]
        return again or way == structure % len(WAYS)
    structure, part = divmod(number - len(STRUCTURES) * len(WAYS), len(PARTS))
    return structure % 2 == 0 and part == structure // 2 % len(PARTS)


def named_in(spec: ModelSpec, part: str) -> Changes:
    """A part of a model, of whose names it has those that this model knows."""
    choices = dict(PARTS[part]) if part else {}
    paths = [f".{path}." for path in tensors_by_path(spec)]
    paths += [".lm_head."] if spec.head is not None and spec.head.tied else []
    for field in {"lora_targets", "freeze"} & choices.keys():
        known = (name for name in choices[field] if any(f".{name}." in path for path in paths))
        choices[field] = tuple(known) or ("all-linear",)
    return choices


@daily(20)
@pytest.mark.parametrize(("name", "part", "way"), chosen(CASES, always))
def test_each_structure(name: str, part: str, way: Way) -> None:
    spec, (attends, checkpointing, dtype, batch_size) = STRUCTURES[name], way
    how = {"attention": attends, "checkpointing": checkpointing, **named_in(spec, part)}
    how["optimizer"] = "sgd-momentum" if part else "sgd"
    if without_formula(spec, attends):
        with pytest.raises(Uncovered, match="has no formula"):
            compare(spec, (batch_size, 11), dtype, **how)
        return
    compare(spec, (batch_size, 11), dtype, **how)


# chunks of the miniatures are 4 positions, filters 3 or 4: a mixer's sequences, shorter and whole
LENGTHS = ((1, 3, "none"), (2, 8, "none"), (3, 4, "full"), (1, 5, "selective"))


@daily(4)
@pytest.mark.parametrize("name", one_in(6, WITH_STATE))
def test_lengths_of_a_mixer(name: str) -> None:
    for batch_size, seq_len, checkpointing in LENGTHS:
        compare(STRUCTURES[name], (batch_size, seq_len), checkpointing=checkpointing)


@daily(4)
@pytest.mark.parametrize("name", one_in(6, WITH_STATE, first=2))
def test_a_mixer_at_published_sizes(name: str) -> None:
    """As few layers as hold one of each kind."""
    spec = entry(name).spec()
    every, shared = kinds(spec), spec.last_stack.shared
    n_layers = next(n for n in range(2, len(every) + 1) if {*every[:n]} == {*every})
    n_layers += n_layers % 2 if BESIDE in spec.ffn_pattern else 0  # the next adds what they give
    if shared is not None:  # used once more than there are blocks
        uses = [i for i, letter in enumerate(spec.mixer_pattern * 9) if letter == "S"]
        n_layers = uses[shared.n_blocks] + 1
    # longer than every chunk but Mamba-2's and lightning's 256, and no multiple of any
    compare(spec.replace(n_layers=n_layers), (1, 131), optimizer="muon", master_weights=True)


SCALES = {"gate": 0.5, "x": 2.0, "b": 0.7, "c": 0.3, "step": 1.5, "out": 3.0}
# sizes that make another case of a mixer: of 1 no copy is made, for tensors lie as a product wants
OTHER_SIZES: dict[str, tuple[Changes, ...]] = {
    "lfm2-1.2b": ({"conv_kernel": 1}, {"short_conv_bias": True}),
    "recurrentgemma-2b": (
        *({"lru_activation": name} for name in ("gelu_tanh", "relu", "gelu")),
        {"lru_activation": "silu", "conv_kernel": 1},
        {"lru_width": 1, "n_lru_blocks": 1, "conv_kernel": 1},
    ),
    "minimax-text-01": ({"n_linear_heads": 1}, {"linear_chunk_size": 3}),
    "xlstm-7b": (
        *({"linear_chunk_size": 2}, {"n_linear_heads": 1, "linear_k_head_dim": 1}),
        {"linear_chunk_size": 3, "linear_v_head_dim": 1},
    ),
    "mamba-2.8b": ({"d_ssm": 1}, {"dt_rank": 1, "ssm_state_dim": 1}),
    "mamba2-130m": (
        *({"n_ssm_groups": 3}, {"ssm_dt_max": 0.5}),
        {"ssm_head_dim": 1, "ssm_chunk_size": 2},
    ),
    "falcon-h1-7b": ({"ssm_scales": SCALES},),
    "qwen3-next-80b-a3b": (
        *({"n_linear_k_heads": 6}, {"n_linear_k_heads": 1, "n_linear_v_heads": 1}),
        {"linear_chunk_size": 2, "linear_v_head_dim": 1},
    ),
    "olmo-hybrid-7b": ({"linear_k_head_dim": 1},),
    "kimi-linear-48b-a3b": (
        *({"linear_chunk_size": 2}, {"linear_head_dim": 1}),
        {"linear_chunk_size": 3, "n_linear_heads": 1},
    ),
}


@daily(6)
@pytest.mark.parametrize(
    ("name", "changes"), [(name, one) for name, some in OTHER_SIZES.items() for one in some]
)
def test_a_mixer_of_other_sizes(name: str, changes: Changes) -> None:
    for sizes, dtype in (((2, 11), "bf16"), ((3, 4), "fp64"), ((1, 1), "fp32"), ((1, 4), "bf16")):
        compare(small(name, **changes), sizes, dtype)


@daily(4)
@pytest.mark.parametrize("name", one_in(6, WITH_STATE, first=4))
def test_one_tensor_of_a_mixer(name: str) -> None:
    """Of the first block; where blocks are run again, with what lies below it."""
    spec = STRUCTURES[name]
    seen = sorted(chosen_tensors(spec, Part()).trained)
    first = [path for path in seen if ".layers.0." in path and ".mlp." not in path]
    for number, path in enumerate(first):
        beside, way = (((), "none"), ((".embed_tokens.",), "full"))[number % 2]
        compare(spec, (2, 7), checkpointing=way, freeze=all_but(spec, f".{path}.", *beside))


# --- structures that no model of the catalog has, and parts

ADAPTERS, FULL = PARTS["adapters of all"], {"checkpointing": "full"}
FLASH, SDPA = {"attention": "flash"}, {"attention": "sdpa"}
PLACED = ("post", "deep", "sandwich", "parallel", "parallel_two", "post_branch")
SHARES = {"n_layers": 5, "activation": "relu2"}  # gate and up are halves of one
ALONE = {"adapter_rank": None, "attention_adapters": False}
# a model, what is another in it, and how it is trained; each also with full checkpointing
KINDS: list[tuple[str, Changes]] = [
    ("olmo-hybrid-7b", {"mixer_pattern": "RRA", "ffn_pattern": "NF"}),
    ("olmo-hybrid-7b", {"mixer_pattern": "RAN"}),
    ("olmo-hybrid-7b", {"mixer_pattern": "RAP", "ffn_pattern": "FFFNN"}),
    (
        "olmo-hybrid-7b",
        {"n_experts": 4, "top_k": 2, "d_ff_expert": 7, "n_shared_experts": 1, "d_ff": None},
    ),
    ("jamba-1.5-mini", {"mixer_pattern": "RP"}),
    ("jamba-1.5-mini", {"mixer_pattern": "RAN", "ffn_pattern": "NFE"}),
    ("jamba-1.5-mini", {"mixer_pattern": "NAR", "ffn_pattern": "EFN"}),
    ("falcon-h1-0.5b", {"mixer_pattern": "PA", "ffn_pattern": "NFN"}),
    ("llama-7b", {"mixer_pattern": "AAN", "ffn_pattern": "NFF"}),
    ("mixtral-8x7b", {"ffn_pattern": "ENFEF", "d_ff": 17}),
    # a mixer alone in its block is run again but for its last matrix
    ("recurrentgemma-2b", {"mixer_pattern": "RA", "ffn_pattern": "NF"}),
    ("minimax-text-01", {"mixer_pattern": "RA", "ffn_pattern": "NE"}),
    *(("minimax-m3-text", {"index_pattern": pattern}) for pattern in ("GI", "GII", "I")),
    *(("glm-4.5", {"norm_placement": placement, "n_mtp_layers": None}) for placement in PLACED),
    ("deepseek-v3", {"n_dense_layers": 2, "d_ff_shared": 11, "n_shared_experts": 3}),
    ("bert-base", {"has_head": True}),  # a pooler is not computed again
    *(("zamba2-1.2b", {**SHARES, **changes}) for changes in ({}, ALONE, {"gated": False})),
    ("zamba2-1.2b", {"n_layers": 5, **ALONE}),
    *(
        ("zamba2-1.2b", {**SHARES, "activation": activation, "gate_scale": 0.5})
        for activation in ("relu", "gelu", "identity")
    ),
]


@daily(17)
@pytest.mark.parametrize(("name", "changes"), KINDS)
def test_kinds_of_layers_side_by_side(name: str, changes: Changes) -> None:
    for checkpointing in ("full", "none"):
        compare(small(name, **changes), checkpointing=checkpointing)


MIXTURE = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
SHARED = {**MIXTURE, "n_shared_experts": 1, "shared_expert_gate": True}
FACTORS = {"attention_out_scale": 0.5, "gate_scale": 3.0, "ffn_scale": 2.0, "residual_weight": 0.7}
FROZEN: list[tuple[Changes, tuple[str, ...]]] = [
    ({}, ("embed_tokens", "k_proj")),  # a result that is read again has four bytes a value
    ({"position": "t5", "n_buckets": 4, "max_distance": 8}, ("embed_tokens", "mlp")),
    # two norms that have the same x, and no weights
    ({"norm_placement": "parallel_two", "norm_affine": False}, ("q_proj",)),
]
BELOW = ("embed_tokens", "layers.0")
FIRST = "decoder.layers.0.self_attn"
# a model, what is another in it, what of it is trained alone, and how
STEPS: list[tuple[str, Changes, str, Changes]] = [
    # of masks and kernels of sdpa what there is: none, windows, chunks, biases with a gradient and
    # without, a prefix, values of another width than the keys and of the same behind a prefix
    *((name, {}, "", SDPA) for name in ("llama-7b", "mistral-7b", "llama4-scout-text", "t5-base")),
    *((name, {}, "", SDPA) for name in ("bloom-176b", "glm-130b", "deepseek-v3", "gopher-280b")),
    ("gemma3-27b-text", {}, "", SDPA),
    ("deepseek-v2", {"kind": "prefix-decoder", "v_head_dim": 11}, "", SDPA),
    # double precision
    *(("chinchilla-70b", {"d_model": d}, "", {"dtype": "fp64"}) for d in (13, 14)),
    *((name, {}, "", {"dtype": "fp64"}) for name in ("deepseek-v2", "mixtral-8x7b", "gpt2")),
    # what shared experts repeat
    *(("", SHARED, f".mlp.{name}.", FULL) for name in ("shared_expert_gate", "shared_experts")),
    # one projection of the first block
    *(
        ("", {"attention_softcap": softcap}, f"{FIRST}.{name}.", {})
        for name, softcap in product(("q_proj", "k_proj", "v_proj"), (None, 30.0))
    ),
    # with one head the kernel's result is what o_proj reads; of more it is copied
    *(
        ("deepseek-v2", {"n_heads": n_heads}, f"{FIRST}.{name}.", FLASH)
        for name, n_heads in product(("o_proj", "kv_b_proj"), (1, 6))
    ),
    # the projection behind the kernel is frozen, so nothing else keeps its result
    *((name, {}, ".q_proj.", FLASH) for name in ("gpt2", "llama-7b")),
    # factors and an indexer keep nothing
    ("llama-7b", FACTORS, "", FULL | {"freeze": (*BELOW, "v_proj")}),
    ("deepseek-v3.2", {}, "", FULL | {"freeze": (*BELOW, "kv_a_proj_with_mqa")}),
    ("llama-7b", FACTORS, "", FULL | ADAPTERS),
    ("deepseek-v3.2", {}, "", FULL | ADAPTERS),
    # hybrids
    ("jamba-1.5-mini", {}, "", {"freeze": ("mamba", "layers.1"), "optimizer": "adafactor"}),
    *(
        (name, {}, "", {"optimizer": "adafactor", **ADAPTERS})
        for name in ("jamba-1.5-mini", "kimi-linear-48b-a3b", "deepseek-v3.2")
    ),
    # through layers with an index and without
    *(("minimax-m3-text", {}, name, FULL) for name in ("embed_tokens", "lm_head")),
    # frozen parts, and branches that read one input
    *(
        ("", changes, "", {"freeze": freeze, "dtype": "fp32", **{"attention": attends, **way}})
        for (changes, freeze), attends, way in product(
            FROZEN, ("eager", "sdpa"), ({}, {"checkpointing": "selective"})
        )
    ),
    *(
        ("", {"norm_placement": placement}, "", {"freeze": (frozen,), "dtype": dtype})
        for placement, frozen, dtype in product(
            ("parallel", "parallel_two"), ("self_attn", "mlp", "q_proj"), ("bf16", "fp32")
        )
    ),
]


@daily(12)
@pytest.mark.parametrize(("name", "changes", "alone", "how"), STEPS)
def test_a_step(name: str, changes: Changes, alone: str, how: Changes) -> None:
    spec = small(name, **changes)
    freeze = {"freeze": all_but(spec, alone)} if alone else {}
    compare(spec, (3, 5), **how, **freeze)


# --- one block of each kind

TWO_NORMS = {"norm_placement": "parallel_two"}
SOME_ROTATE = {"n_layers": 5, "mixer_pattern": "ANA", "nope_every": 2}
# with the type that they are trained in
MODELS: dict[str, tuple[ModelSpec, str]] = {
    "two norms that keep one x": (small("", **TWO_NORMS), "fp32"),
    "two norms that keep each its own": (small("", **TWO_NORMS), "bf16"),
    "two layer norms": (small("", **TWO_NORMS, norm="layernorm"), "fp32"),
    "norms around three branches": (small("t5-base", norm_placement="sandwich"), "bf16"),
    "a shared block": (small("zamba2-1.2b", n_layers=5), "bf16"),
    "mixers of two kinds, experts": (small("jamba-1.5-mini"), "bf16"),
    "both mixers in a block": (small("falcon-h1-0.5b"), "bf16"),
    "some rotate, some have no attention": (small("", **SOME_ROTATE), "bf16"),
    "positions of queries": (small("pangu-alpha-207b"), "bf16"),
    "no first norm": (small("", first_norm=False), "bf16"),
    "some have an index": (small("minimax-m3-text"), "bf16"),
}


@daily(10)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_a_block_is_what_a_model_keeps_more_with_it(name: str, checkpointing: str) -> None:
    (spec, dtype), setup = MODELS[name], Setup(checkpointing=checkpointing)
    for sizes in ((3, 1), (1, 5)):
        compare(spec, sizes, dtype, checkpointing=checkpointing)
    work = workload(spec, 3, 5, dtype)
    run = Pass(
        batch_size=3,
        seq_len=5,
        source_len=work.source_len,
        bytes_per_value=DTYPE_BYTES[dtype],
        checkpointing=checkpointing,
    )
    blocks = block_bytes(spec, run)
    measured, counted = [], []
    for n_layers in range(spec.n_layers, max(1, spec.n_layers - 3), -1):
        fewer = spec.replace(n_layers=n_layers)
        figures = both(fewer, work, setup)
        assert differing(*figures) == {}
        measured.append(figures[1].activation_bytes)
        counted.append(sum(n * blocks[kind] for kind, (n, *_) in block_kinds(fewer).items()))
    assert len(measured) > 1
    assert [measured[0] - n for n in measured] == [counted[0] - n for n in counted]


# --- by hand


def test_what_is_not_repeated_of_a_gated_linear_recurrence() -> None:
    patterns = {"mixer_pattern": "RA", "ffn_pattern": "NF", "n_layers": 2}
    spec = small("recurrentgemma-2b", **patterns, d_model=14, lru_width=25, d_ff=17)
    counted = count_step(spec, Workload(batch_size=3, seq_len=5), Setup(**FULL))
    once, again = counted.matmul_flops_by_role, counted.recompute_matmul_flops_by_role
    assert once is not None and again is not None
    # linear_out [14, 25] of the block without a feed-forward, down_proj [14, 17] of the other,
    # each 2 FLOPs · 15 tokens; no attention without a feed-forward
    assert once["recurrent"] - again["recurrent"] == 2 * 15 * 14 * 25
    assert once["ffn"] - again["ffn"] == 2 * 15 * 14 * 17
    assert once["attention"] == again["attention"]


def test_adapters_of_queries_and_values_by_hand() -> None:
    """LLaMA-7B, 8 tokens: what has no gradient is left out of the backward."""
    n, r, d, m, layers, vocab = 8, 16, 4096, 11008, 32, 32000
    setup = Setup(lora_rank=r, lora_targets=("q_proj", "v_proj"))
    step = count_step(entry("llama-7b").spec(), Workload(seq_len=n), setup)
    adapter = 2 * n * r * 2 * d  # A and B
    pairs = 2 * n * n * d
    products = 2 * n * (4 * d * d + 3 * d * m)  # of all frozen matrices of a block
    forward = layers * (products + 2 * adapter + 2 * pairs) + 2 * n * d * vocab
    assert step.matmul_flops == forward
    # one gradient of each frozen product, two of adapters and of attention, but in the first
    # block: its input has none, so q, k and v's matrices have none, nor A's input, nor the keys
    whole = layers * (products + 4 * adapter + 4 * pairs) + 2 * n * d * vocab
    first = 2 * n * 3 * d * d + 2 * (2 * n * r * d) + pairs
    assert step.backward_matmul_flops == whole - first


def test_adapters_outside_of_layers_are_not_for_muon() -> None:
    """The dense layer before BERT's head and the pooler, whose adapters have no gradient."""
    spec = small("bert-base", has_head=True, head_transform=True)
    setup = Setup(lora_rank=3, lora_targets=("dense", "q_proj"), optimizer="muon")
    counted, found = both(spec, workload(spec, 3, 5), setup)
    assert differing(counted, found) == {}
    rank, d, head = 3, spec.d_model, spec.n_heads * spec.head_dim
    queries = spec.n_layers * rank * (d + head)
    # Muon's momentum in 2 bytes; AdamW's two moments and a counter for each of two tensors
    assert counted.optimizer_bytes == 2 * queries + 2 * 2 * rank * 2 * d + 2 * 4
    stored = sum(weight.size for weight in tensors_by_path(spec).values())
    assert counted.params - stored == queries + 2 * rank * 2 * d


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_what_lies_below_the_lowest_trained_layer_costs_nothing(checkpointing: str) -> None:
    upper, lower = (
        count_step(
            small("llama-7b", n_layers=n_layers),
            Workload(batch_size=3, seq_len=11),
            Setup(freeze=freeze, checkpointing=checkpointing),
        )
        for n_layers, freeze in ((5, (*BELOW, "layers.1")), (3, BELOW[:1]))
    )
    # its blocks 2 to 4 are the other's 0 to 2
    for name in ("backward_matmul_flops", "activation_bytes", "recompute_matmul_flops"):
        assert getattr(upper, name) == getattr(lower, name), name


def test_what_the_loss_does_not_see_is_said() -> None:
    spec = small("deepseek-v3.2", n_layers=2, n_dense_layers=1)
    measured = metacount.train(spec, Workload(seq_len=5))
    # d 13, a query latent of 23, 5 heads of 8: wq_b, wk, weights_proj, a norm with bias; 2 layers
    unseen = 2 * (23 * 5 * 8 + 13 * 8 + 13 * 5 + 2 * 8)
    assert f"{unseen:,} parameters have no gradient" in " ".join(measured.notes)
    assert measured.params - measured.trainable_params == unseen


# --- in letters; what is refused, and what is wrong


def test_in_letters() -> None:
    mistral, work = entry("mistral-7b").spec(), Workload(seq_len=8)
    form = closed_form(mistral, work, "activation_bytes:sdpa")
    assert form.total == count_step(mistral, work, Setup(**SDPA)).activation_bytes
    with pytest.raises(SpecError, match="attention"):
        closed_form(entry("deepseek-v3").spec(), work, "activation_bytes:sdpa")
    with pytest.raises(SpecError, match="nope_every"):
        closed_form(small("", **SOME_ROTATE), work, "activation_bytes")
    filtered = "k_c*(S + 2*k_c - min(S, k_c) - 1)"
    right = f"4*B*(N*d_i*(3*S*d + 3*S*d_s + 2*S*r_t + {filtered}) + S*V*d)"
    for text, verdict in ((right, "equal"), (right.replace("min(S, k_c)", "k_c"), "equal_here")):
        found = metacount.check(text, "mamba-2.8b", quantity="backward_matmul_flops")
        assert found.verdict == verdict


@pytest.mark.parametrize(
    ("changes", "choices", "figure", "rule"),
    [
        ({"has_head": False}, {}, "activation_bytes", "has_head has no formula for training: with"),
        # of one head torch takes a tensor for an image, whose channels it lays last
        ({"n_ssm_heads": 1}, {}, "activation_bytes", "n_ssm_heads has no formula for training"),
        (
            {"position": "alibi", "window": 3, "window_pattern": "LG"},
            *({}, "activation_bytes", "window_pattern has no formula for training with a bias"),
        ),
        (
            *({}, {"freeze": ("embed_tokens",)}, "activation_bytes_of_block"),
            "freeze has no formula of what one block keeps: got 'embed_tokens'",
        ),
    ],
)
def test_what_has_no_formula_is_said(
    changes: Changes, choices: Changes, figure: str, rule: str
) -> None:
    model = "mamba2-130m" if "n_ssm_heads" in changes else ""
    counted = count_step(small(model, **changes), Workload(seq_len=8), Setup(**choices))
    assert getattr(counted, figure) is None
    assert counted.uncovered[figure].startswith(rule)


def two_for_one(ops: Any) -> Any:
    """Two products in a backward for each of the forward, whatever a kernel or a mixer does."""
    return ((op.role, op.factors * op.flops) for op in ops)


def unmasked(spec: ModelSpec, layer: block.Layer) -> Attending:
    return altered(RIGHTLY(spec, layer), mask="", per_head=False)


RIGHTLY = block.attending
MIXTRAL, UPPER = "mixtral-8x7b", {"freeze": (*BELOW, "down_proj")}
# whose rule, its name, another rule, and the model and setup that show it
PLANTED: dict[str, tuple[Any, str, Any, str, Changes]] = {
    "kernels keep no result": (
        *(folds, "product_results", lambda ops: ()),
        *(MIXTRAL, FLASH | {"checkpointing": "selective"}),
    ),
    "no mask of a window": (block, "attending", unmasked, "mistral-7b", SDPA),
    "no mask of a bias": (block, "attending", unmasked, "bloom-176b", SDPA),
    "a kernel for any width": (attention, "_is_written", lambda *_: False, "deepseek-v3", SDPA),
    "a choice has a gradient": (Tape, "without_gradients", lambda tape: tape, "deepseek-v3.2", {}),
    **{
        f"two products for one in {name}": (folds, "backward_flops", two_for_one, name, how)
        for name, how in (
            ("gpt2", SDPA),
            *((name, {}) for name in ("kimi-linear-48b-a3b", "qwen3-next-80b-a3b")),
            ("minimax-text-01", {}),
        )
    },
    "SiLU keeps its result": (tape, "SAVES_RESULT", ("relu", "sigmoid", "silu"), "llama-7b", {}),
    "no table is kept": (Tape, "scale_by", lambda t, x, table, name: x, "llama-7b", {}),
    "heads are read as they lie": (attention, "several", lambda *counts: 0, "gemma-2b", {}),
    "a mask of float32": (attention, "FLAG", 4, "gpt2", {}),
    "indices of four bytes": (attention, "INDEX", 4, "gopher-280b", {}),
    "choices of four bytes": (feed_forward, "INDEX", 4, MIXTRAL, {}),
    "all is trained": (Tape, "is_trained", lambda tape, name: True, MIXTRAL, UPPER),
    "no norm": (Tape, "norm", lambda tape, x, name, norms, **_: x, MIXTRAL, UPPER),
    "no experts": (feed_forward, "experts", lambda t, part, like, x, name: x, MIXTRAL, {}),
    "no loss": (ends, "loss", lambda tape, logits: None, MIXTRAL, UPPER),
}


@daily(5)
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_error_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, model, how = PLANTED[mistake]
    work, setup = Workload(batch_size=3, seq_len=5), Setup(**{"optimizer": "sgd", **how})
    counted, found = both(small(model), work, setup)
    assert differing(counted, found) == {}
    monkeypatch.setattr(owner, name, wrong)
    assert differing(count_step(small(model), work, setup), found)
