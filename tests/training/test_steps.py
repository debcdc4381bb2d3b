"""A step of every structure of the catalog, and of others, by formula and measured."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.random_models import changed, workloads
from helpers.release import daily, one_day_in, one_in
from helpers.steps import Uncovered, all_but, both, compare, differing, without_formula, workload
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import metacount
from metacount import InputError, Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import attention, folds
from metacount.formulas.step import Part, chosen_tensors, tensors_by_path
from metacount.formulas.tape import CHECKPOINTINGS, Pass, Tape
from metacount.spec import DTYPE_BYTES, ModelSpec
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


SCALES = {"gate": 0.5, "x": 2.0, "b": 0.7, "c": 0.3, "step": 1.5, "out": 3.0}
LAW = {"weight": 0.1, "step": 4, "shift": 1}
MLA = {
    **{"attention": "mla", "n_kv_heads": None, "head_dim": None, "v_head_dim": 3},
    **{"q_lora_rank": 9, "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2},
}
T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}
EXPERTS = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
HEAD = {"head_transform": True, "head_transform_bias": True}
# layers with a window that have other heads
NEAR = {"window": 3, "window_pattern": "LG", "n_layers": 3, "n_heads_windowed": 4}
# sizes that are named in the text below by one word
NAMED: dict[str, Changes] = {
    "T5": T5,
    "MLA": MLA,
    "EXPERTS": EXPERTS,
    "HEAD": HEAD,
    "SCALES": {"ssm_scales": SCALES},
    "SHARED": {**EXPERTS, "n_shared_experts": 2, "d_ff_shared": 11},
    "GROWTH": {"query_growth": {**LAW, "nope_only": False}},
    "LATE_GROWTH": {"query_growth": {**LAW, "nope_only": True}},
    "NEAR": {**NEAR, "n_kv_heads_windowed": 4, "head_dim_windowed": 6},
    "ENDS": {"kind": "encoder", "d_embedding": 7, **HEAD},
    "TWO": {"norm_placement": "parallel_two", "n_layers": 2},
    "SHARES": {"n_layers": 5, "activation": "relu2"},  # gate and up are halves of one
    "ALONE": {"adapter_rank": None, "attention_adapters": False},
    "DENSE": {"n_mtp_layers": None},
}
# `MODEL: ` where another model begins (of none: the smallest), then changes, `;` or a line's end
# between two; before `&` what all changes of a line have.
CHANGES = """
: swish_beta=1.7; swish_beta=1.7 gated=false; activation=identity; activation=xielu gated=false
activation=clamped_swiglu; norm=layernorm norm_bias=true; norm_affine=false; norm_unit_offset=true
qk_norm=head; qk_norm=full; qk_norm=l2; norm=layernorm norm_bias=true qk_norm=layernorm
qk_norm=head norm_unit_offset=true; qk_norm=full norm_unit_offset=true
attention_out_scale=0.5 gate_scale=3.0 ffn_scale=2.0 residual_weight=0.7
# attention, beside six heads on two of keys and values
n_kv_heads=1; n_kv_heads=6; n_heads=1 n_kv_heads=1; position=none; position=alibi
position=transformer_xl; rotary_dim=2; attention_softcap=30.0; attention_sinks=true
window=3; window=3 window_kind=chunked; window=3 position=alibi
window=3 window_pattern=LG n_layers=2; kind=prefix-decoder; output_gate=true
window=3 window_kind=chunked window_pattern=LG n_layers=3 nope_every=2
output_gate=true position=none; output_gate=true qk_norm=head
output_gate=true n_heads=1 n_kv_heads=1; output_gate=true n_heads=1 n_kv_heads=1 position=none
q_bias=true k_bias=true v_bias=true o_bias=true
value_head_dim=3; value_head_dim=5 n_kv_heads=6; head_gate=sigmoid; head_gate=softplus
head_gate=softplus n_heads=1 n_kv_heads=1; NEAR value_head_dim=7 head_gate=softplus
NEAR sinks_windowed=true rope_theta_windowed=9.0 rotary_dim_windowed=2; T5; T5 window=3; GROWTH
GROWTH output_gate=true n_heads=2; LATE_GROWTH nope_every=2 n_layers=2; MLA
MLA & q_lora_rank=null; v_head_dim=1; v_head_dim=6; v_head_dim=8; n_heads=1; attention_softcap=30.0
MLA & position=none; n_layers=3
EXPERTS & swish_beta=1.7; activation=identity; activation=clamped_swiglu; top_k=1
EXPERTS & router=softmax_renorm; router=topk_softmax; router=sigmoid; expert_bias=true
EXPERTS & router=sigmoid_renorm selection_bias=true routed_scale=2.5; router_bias=true
EXPERTS & router=sigmoid selection_bias=true selection_bias_param=true; router_scales_input=true
EXPERTS & router=sigmoid router_scales_input=true; n_experts=6 n_groups=3 top_groups=2
EXPERTS & n_zero_experts=2; n_dense_layers=1 d_ff=17
EXPERTS & n_experts=6 n_groups=3 top_groups=2 group_score=max
SHARED & gated=true; shared_expert_gate=true; router_scales_input=true
SHARED & router=softmax_renorm activation=clamped_swiglu
SHARED & expert_bias=true router_bias=true shared_expert_gate=true gated=false activation=gelu
SHARED & shared_expert_gate=true router=sigmoid router_scales_input=true
SHARED & shared_expert_gate=true activation=relu
# what stands before the first block and behind the last; norms elsewhere, and an encoder
n_token_types=3; position=learned n_positions=11; position=sinusoidal
position=learned n_positions=11 n_query_positions=11; embedding_norm=true
embedding_norm=true norm=layernorm norm_bias=true; tie_embeddings=true; head_bias=true
logit_softcap=30.0; final_norm=false; first_norm=false
embedding_scale=2.0 logit_scale=0.5 residual_scale=1.5; first_norm=false n_layers=3
nope_every=2 n_layers=3
ENDS & tie_embeddings=false; embedding_norm=true tie_embeddings=true
HEAD swish_beta=1.7; norm_placement=sandwich n_layers=2; norm_placement=post n_layers=2
norm_placement=parallel n_layers=2; TWO; TWO norm=layernorm norm_bias=true; TWO norm_affine=false
kind=encoder-decoder n_encoder_layers=2 n_layers=2
# mixers; of size 1 no copy is made, for tensors lie as a product wants
lfm2-1.2b: conv_kernel=1; short_conv_bias=true
recurrentgemma-2b: lru_activation=gelu_tanh; lru_activation=relu; lru_activation=gelu
lru_activation=silu conv_kernel=1; lru_width=1 n_lru_blocks=1 conv_kernel=1
# a mixer alone in its block is run again but for its last matrix
mixer_pattern=RA ffn_pattern=NF
minimax-text-01: n_linear_heads=1; linear_chunk_size=3; mixer_pattern=RA ffn_pattern=NE
xlstm-7b: linear_chunk_size=2; n_linear_heads=1 linear_k_head_dim=1
linear_chunk_size=3 linear_v_head_dim=1
mamba-2.8b: d_ssm=1; dt_rank=1 ssm_state_dim=1
mamba2-130m: n_ssm_groups=3; ssm_dt_max=0.5; ssm_head_dim=1 ssm_chunk_size=2
falcon-h1-7b: SCALES
qwen3-next-80b-a3b: n_linear_k_heads=6; n_linear_k_heads=1 n_linear_v_heads=1
linear_chunk_size=2 linear_v_head_dim=1
kimi-linear-48b-a3b: linear_chunk_size=2; linear_head_dim=1; linear_chunk_size=3 n_linear_heads=1
# kinds of layers side by side
olmo-hybrid-7b: linear_k_head_dim=1; mixer_pattern=RRA ffn_pattern=NF; mixer_pattern=RAN
mixer_pattern=RAP ffn_pattern=FFFNN; EXPERTS n_shared_experts=1
jamba-1.5-mini: mixer_pattern=RP; mixer_pattern=RAN ffn_pattern=NFE
mixer_pattern=NAR ffn_pattern=EFN
falcon-h1-0.5b: mixer_pattern=PA ffn_pattern=NFN
llama-7b: mixer_pattern=AAN ffn_pattern=NFF
mixtral-8x7b: ffn_pattern=ENFEF d_ff=17
minimax-m3-text: index_pattern=GI; index_pattern=GII; index_pattern=I
glm-4.5: DENSE & norm_placement=post; norm_placement=deep; norm_placement=sandwich
DENSE & norm_placement=parallel; norm_placement=parallel_two; norm_placement=post_branch
deepseek-v3: n_dense_layers=2 d_ff_shared=11 n_shared_experts=3
deepseek-v2: kind=prefix-decoder v_head_dim=11; n_heads=1; n_heads=6
# a pooler is not computed again
bert-base: has_head=true
zamba2-1.2b: SHARES; SHARES ALONE; SHARES gated=false; n_layers=5 ALONE
SHARES gate_scale=0.5 & activation=relu; activation=gelu; activation=identity
"""


def fields_of(text: str) -> Changes:
    """`name=value`, a value in JSON or a word; a name of `NAMED`."""
    found: Changes = {}
    for name, is_one, value in (word.partition("=") for word in text.split()):
        plain = re.fullmatch(r"null|true|false|-?[\d.]+", value)
        found |= {name: json.loads(value) if plain else value} if is_one else NAMED[name]
    return found


def changed_models() -> dict[str, list[Changes]]:
    """Of the smallest model, or of one of the catalog, what is another in it."""
    names = ("relu", "gelu", "gelu_tanh", "silu", "relu2", "sigmoid")
    gates = [{"activation": name, "gated": gated} for name in names for gated in (False, True)]
    found: dict[str, list[Changes]] = {"": [*gates, *({**EXPERTS, **gate} for gate in gates)]}
    found[""] += [{**HEAD, **gate} for gate in gates[1::4]]
    model = ""
    for line in CHANGES.strip().splitlines():
        if line.startswith("#"):
            continue
        named, is_new, rest = line.rpartition(": ")
        model = named if is_new else model
        common, _, rows = rest.rpartition(" & ")
        found.setdefault(model, [])
        found[model] += [{**fields_of(common), **fields_of(row)} for row in rows.split(";")]
    return found


CHANGED = changed_models()


def model_of(name: str, changes: Changes) -> ModelSpec:
    return small(name, **changes) if changes else STRUCTURES[name]


def named_in(spec: ModelSpec, part: str) -> Changes:
    """A part of a model, of whose names it has those that this model knows."""
    choices = dict(PARTS[part]) if part else {}
    paths = [f".{path}." for path in tensors_by_path(spec)]
    paths += [".lm_head."] if spec.head is not None and spec.head.tied else []
    for field in {"lora_targets", "freeze"} & choices.keys():
        known = (name for name in choices[field] if any(f".{name}." in path for path in paths))
        choices[field] = tuple(known) or ("all-linear",)
    return choices


def names_in(spec: ModelSpec) -> list[str]:
    """The names of tensors, those of a block once."""
    paths = [path.rpartition(".layers.")[2] for path in tensors_by_path(spec)]
    return sorted({f".{path.lstrip('0123456789.')}." for path in paths})


def cases() -> Iterator[tuple[str, Changes, str, Way]]:
    """All of each model in some ways, of the catalog's in each; then a part of it in another.

    A part is one of `PARTS`, or where something is changed the tensors of one name.
    """
    changed = ((name, changes) for name, rows in CHANGED.items() for changes in rows)
    for i, (name, changes) in enumerate((*((name, {}) for name in STRUCTURES), *changed)):
        yield from ((name, changes, "", way) for way in (WAYS[i % 6 :: 6] if changes else WAYS))
        for j, part in enumerate(names_in(model_of(name, changes)) if changes else PARTS):
            yield name, changes, part, WAYS[(5 * i + j) % len(WAYS)]


@daily(20)
@pytest.mark.parametrize(("name", "changes", "part", "way"), [*cases()])
def test_a_step(name: str, changes: Changes, part: str, way: Way) -> None:
    spec, (attends, checkpointing, dtype, batch_size) = model_of(name, changes), way
    how: Changes = {"attention": attends, "checkpointing": checkpointing}
    if part in PARTS:
        how |= named_in(spec, part)
    elif part:
        how["freeze"] = all_but(spec, part)
    if without_formula(spec, attends):
        with pytest.raises(Uncovered, match="has no formula"):
            compare(spec, (batch_size, 11), dtype, **how)
        return
    compare(spec, (batch_size, 11), dtype, optimizer="sgd-momentum" if part else "sgd", **how)


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


# chunks of the miniatures are 4 positions, filters 3 or 4: a mixer's sequences, shorter and whole
LENGTHS = ((1, 1, "none"), (1, 3, "none"), (2, 8, "none"), (3, 4, "full"), (1, 5, "selective"))


@daily(4)
@pytest.mark.parametrize("name", one_in(6, WITH_STATE, first=4))
def test_lengths_of_a_mixer(name: str) -> None:
    for dtype, (batch_size, seq_len, checkpointing) in product(("bf16", "fp64"), LENGTHS):
        compare(STRUCTURES[name], (batch_size, seq_len), dtype, checkpointing=checkpointing)


FULL, SDPA = {"checkpointing": "full"}, {"attention": "sdpa"}
BELOW = ("embed_tokens", "layers.0")
ADAPTERS = PARTS["adapters of all"]
FACTORS = {"attention_out_scale": 0.5, "gate_scale": 3.0, "ffn_scale": 2.0, "residual_weight": 0.7}
FIRST = "decoder.layers.0.self_attn"
# a model, what is another in it, what of it is trained alone, and how
STEPS: list[tuple[str, Changes, str, Changes]] = [
    *(("chinchilla-70b", {"d_model": d}, "", {"dtype": "fp64"}) for d in (13, 14)),
    *((name, {}, "", {"dtype": "fp64"}) for name in ("deepseek-v2", "mixtral-8x7b", "gpt2")),
    # one projection of the first block
    *(
        ("", {"attention_softcap": softcap}, f"{FIRST}.{name}.", {})
        for name, softcap in product(("q_proj", "k_proj", "v_proj"), (None, 30.0))
    ),
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
    # frozen parts, and branches that read one input
    *(
        ("", changes, "", {"freeze": freeze, "dtype": "fp32", "attention": attends, **way})
        for (changes, freeze), attends, way in product(
            (
                ({}, ("embed_tokens", "k_proj")),  # a result read again has four bytes a value
                (T5, ("embed_tokens", "mlp")),
                # two norms that have the same x, and no weights
                ({"norm_placement": "parallel_two", "norm_affine": False}, ("q_proj",)),
            ),
            ("eager", "sdpa"),
            ({}, {"checkpointing": "selective"}),
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
def test_a_part(name: str, changes: Changes, alone: str, how: Changes) -> None:
    spec = small(name, **changes)
    freeze = {"freeze": all_but(spec, alone)} if alone else {}
    compare(spec, (3, 5), **how, **freeze)


# --- one block of each kind

TWO_NORMS = {"norm_placement": "parallel_two"}
SOME_ROTATE = {"n_layers": 5, "mixer_pattern": "ANA", "nope_every": 2}
# with the type that they are trained in
MODELS: dict[str, tuple[ModelSpec, str]] = {
    "two norms that keep one x": (small("", **TWO_NORMS), "fp32"),
    "norms around three branches": (small("t5-base", norm_placement="sandwich"), "bf16"),
    "a shared block": (small("zamba2-1.2b", n_layers=5), "bf16"),
    "mixers of two kinds, experts": (small("jamba-1.5-mini"), "bf16"),
    "some rotate, some have no attention": (small("", **SOME_ROTATE), "bf16"),
    "some have an index": (small("minimax-m3-text"), "bf16"),
}


@daily(10)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_a_block_is_what_a_model_keeps_more_with_it(name: str, checkpointing: str) -> None:
    (spec, dtype), setup = MODELS[name], Setup(checkpointing=checkpointing)
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


def test_what_has_no_formula_is_said() -> None:
    windowed = {"position": "alibi", "window": 3, "window_pattern": "LG"}
    kept, of_block = "activation_bytes", "activation_bytes_of_block"
    for spec, freeze, figure, rule in (
        (small("", has_head=False), (), kept, "has_head has no formula for training: with"),
        # of one head torch takes a tensor for an image, whose channels it lays last
        (small("mamba2-130m", n_ssm_heads=1), (), kept, "n_ssm_heads has no formula for training"),
        (small("", **windowed), (), kept, "window_pattern has no formula for training with a bias"),
        (small(""), ("embed_tokens",), of_block, "freeze has no formula of what one block keeps"),
        (small("", layer_scalar=True), (), of_block, "layer_scalar has no formula of what one bl"),
    ):
        counted = count_step(spec, Workload(seq_len=8), Setup(freeze=freeze))
        assert getattr(counted, figure) is None
        assert counted.uncovered[figure].startswith(rule)


# whose rule, its name, another rule, and the model and setup that show it
PLANTED: dict[str, tuple[Any, str, Any, str, Changes]] = {
    "two products for one": (
        *(folds, "backward_flops", lambda ops: ((op.role, op.factors * op.flops) for op in ops)),
        *("gpt2", SDPA),
    ),
    "indices of four bytes": (attention, "INDEX", 4, "gopher-280b", {}),
    "all is trained": (
        *(Tape, "is_trained", lambda tape, name: True),
        *("mixtral-8x7b", {"freeze": (*BELOW, "down_proj")}),
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_error_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, model, how = PLANTED[mistake]
    work, setup = Workload(batch_size=3, seq_len=5), Setup(**{"optimizer": "sgd", **how})
    counted, found = both(small(model), work, setup)
    assert differing(counted, found) == {}
    monkeypatch.setattr(owner, name, wrong)
    assert differing(count_step(small(model), work, setup), found)


# ---- models and setups drawn at random


NAMES = ["embed_tokens", "lm_head", "q_proj", "k_proj", "o_proj", "down_proj", "up_proj"]
NAMES += ["input_layernorm", "norm", "self_attn", "mlp", "layers.0", "mixer", "experts", "gate"]


def part_of(spec: ModelSpec, chance: random.Random) -> dict[str, Any]:
    """What is trained: all, adapters of some layers, one tensor to four, or all but some names."""
    kind, paths = chance.choice(("all", "adapters", "few", "most")), sorted(tensors_by_path(spec))
    if kind == "few":
        some = set(chance.sample(paths, chance.randint(1, min(4, len(paths)))))
        return {"freeze": tuple(path for path in paths if path not in some)}
    if kind == "most":
        return {"freeze": tuple(chance.sample(NAMES, chance.randint(1, 3)))}
    if kind == "all":
        return {}
    linear = chosen_tensors(spec, Part(rank=1, targets=("all-linear",))).stored
    names = ["all-linear", *{path.split(".")[-2] for path in linear if path.endswith("lora_a")}]
    targets = tuple(chance.sample(sorted(names), min(len(names), chance.randint(1, 4))))
    freeze = chance.choice(((), ("lora_a",), ("layers.0",)))
    return {"lora_rank": chance.randint(1, 4), "lora_targets": targets, "freeze": freeze}


def setup_of(spec: ModelSpec, dtype: str, chance: random.Random) -> Setup:
    optimizers = ("adamw", "sgd", "sgd-momentum", "adagrad", "adafactor", "muon", "adam8bit")
    how: dict[str, Any] = {
        "optimizer": chance.choice(optimizers),
        "attention": chance.choice(("eager", "sdpa", "flash")),
        "checkpointing": chance.choice(("none", "selective", "full")),
        "loss": chance.choice(("full", "full", "chunked")),
        "loss_chunks": chance.randint(1, 5),
        "foreach": chance.random() < 0.5,
    }
    if dtype in ("bf16", "fp16") and chance.random() < 0.5:
        how |= {"master_weights": True, "grad_dtype": chance.choice((None, "fp32"))}
    return Setup(**how, **part_of(spec, chance))


@one_day_in(3)  # half a second an example
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.randoms(use_true_random=False))
def test_any_structure(data: st.DataObject, chance: random.Random) -> None:
    """Its figures, None where it has no formula, and those by role are what is measured."""
    spec = data.draw(changed(tuple(with_logits().values())))
    try:
        work = data.draw(workloads(spec, "bf16", "fp16", "fp32"))
        setup = setup_of(spec, work.dtype, chance)
        step = metacount.train(spec, work, setup)
    except (SpecError, InputError):
        assume(False)
    assert {k: n for k, n in step.formula.items() if n not in (None, getattr(step, k))} == {}
    for name, said in vars(count_step(spec, work, setup)).items():
        if name.endswith("_by_role") and said is not None:
            assert said == getattr(step, name), name
