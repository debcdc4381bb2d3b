"""A step of every structure of the catalog, and of structures beside them: by formula, and measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.release import chosen, one_in
from helpers.steps import Uncovered, both, compare, differing, without_formula, workload
from helpers.structures import with_logits

import metacount
from metacount import Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import attention, block, ends, folds
from metacount.formulas.attention import Sees
from metacount.formulas.run import CHECKPOINTINGS, Pass
from metacount.formulas.tape import Tape
from metacount.spec import DTYPE_BYTES, ModelSpec
from metacount.spec.stack import BESIDE
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import block_bytes, training_count
from metacount.textbook.training.blocks import block_numbers
from metacount.textbook.training.chosen import count_step


def small(name: str, **changes: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changes)


def kinds(spec: ModelSpec) -> list[tuple[Any, ...]]:
    """What distinguishes each layer."""
    return [
        (
            spec.last_stack.mixer_of(index),
            spec.last_stack.ffn_of(index),
            spec.is_moe_layer(index),
            spec.is_windowed_layer(index),
            spec.has_rope_layer(index),
            spec.has_index_layer(index),
        )
        for index in range(spec.n_layers)
    ]


def short(spec: ModelSpec) -> ModelSpec:
    """Three layers where all are of a kind; shared blocks used more often than they are stored."""
    if spec.last_stack.shared is not None:
        return spec.replace(n_layers=5)
    return spec.replace(n_layers=3) if len({*kinds(spec)}) == 1 else spec


SPECS = {name: short(spec) for name, spec in with_logits().items()}
WITH_STATE = [
    name for name, spec in SPECS.items() if spec.recurrent != "none" or spec.n_index_heads
]
# attention, checkpointing, dtype, batch size; of each structure every run tries one
WAYS = [
    (attends, checkpointing, "bf16" if attends == "flash" else dtype, batch_size)
    for (dtype, batch_size), checkpointing, attends in itertools.product(
        (("bf16", 3), ("fp32", 1)), ("full", "none", "selective"), ("eager", "flash", "sdpa")
    )
]


def once(number: int) -> bool:
    """Whether every run tries a case: one way of each structure, of mixers what is run again too."""
    structure, way = divmod(number, len(WAYS))
    again = list(SPECS)[structure] in WITH_STATE and way == (0, 9)[structure % 2]
    return again or way == structure % len(WAYS)


@pytest.mark.parametrize(("name", "way"), chosen(itertools.product(SPECS, WAYS), once))
def test_a_step(name: str, way: tuple[str, str, str, int]) -> None:
    attends, checkpointing, dtype, batch_size = way
    spec, how = SPECS[name], {"attention": attends, "checkpointing": checkpointing}
    if without_formula(spec, attends):
        with pytest.raises(Uncovered, match="has no formula"):
            compare(spec, (batch_size, 11), dtype, **how)
        return
    compare(spec, (batch_size, 11), dtype, **how)


# chunks of the miniatures are 4 positions, filters 3 or 4: a mixer's sequences, shorter and whole
LENGTHS = ((1, 3, "none"), (2, 8, "none"), (3, 4, "full"), (1, 5, "selective"))


@pytest.mark.parametrize("name", one_in(6, WITH_STATE))
def test_lengths_of_a_mixer(name: str) -> None:
    for batch_size, seq_len, checkpointing in LENGTHS:
        compare(SPECS[name], (batch_size, seq_len), checkpointing=checkpointing)


@pytest.mark.parametrize("name", one_in(6, WITH_STATE, first=2))
def test_a_mixer_at_published_sizes(name: str) -> None:
    """As few layers as hold one of each kind."""
    spec = entry(name).spec()
    every, shared = kinds(spec), spec.last_stack.shared
    n_layers = next(n for n in range(2, len(every) + 1) if {*every[:n]} == {*every})
    n_layers += (
        n_layers % 2 if BESIDE in spec.ffn_pattern else 0
    )  # the next one adds what they give
    if shared is not None:  # used once more than there are blocks
        uses = [i for i, letter in enumerate(spec.mixer_pattern * 9) if letter == "S"]
        n_layers = uses[shared.n_blocks] + 1
    # longer than every chunk but Mamba-2's and lightning's 256, and no multiple of any
    spec = spec.replace(n_layers=n_layers)
    compare(spec, (1, 131), optimizer="muon", master_weights=True)


NO_ADAPTERS = {"adapter_rank": None, "attention_adapters": False}
NO_EXPERTS_MODULE = {"n_mtp_layers": None}
PLACED = ("post", "deep", "sandwich", "parallel", "parallel_two", "post_branch")
# layers of other kinds, and side by side, than the models of the catalog have
OTHERS: list[tuple[str, dict[str, Any]]] = [
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
    *(("glm-4.5", {"norm_placement": placement, **NO_EXPERTS_MODULE}) for placement in PLACED),
    ("deepseek-v3", {"n_dense_layers": 2, "d_ff_shared": 11, "n_shared_experts": 3}),
    ("bert-base", {"has_head": True}),  # a pooler is not computed again
    ("zamba2-1.2b", {"n_layers": 5, "activation": "relu2"}),  # gate and up are halves of one
    *(
        ("zamba2-1.2b", {"n_layers": 5, **NO_ADAPTERS, **changes})
        for changes in ({}, {"activation": "relu2"})
    ),
    *(
        ("zamba2-1.2b", {"n_layers": 5, "activation": activation, "gate_scale": 0.5})
        for activation in ("relu", "gelu", "identity")
    ),
    ("zamba2-1.2b", {"n_layers": 5, "activation": "relu2", "gated": False}),
]


@pytest.mark.parametrize(("name", "changes"), OTHERS)
def test_kinds_of_layers_side_by_side(name: str, changes: dict[str, Any]) -> None:
    for checkpointing in ("full", "none"):
        compare(small(name, **changes), checkpointing=checkpointing)


@pytest.mark.parametrize(
    ("name", "d_model"),
    [
        *(("chinchilla-70b", d_model) for d_model in (13, 14)),
        *((name, 13) for name in ("deepseek-v2", "mixtral-8x7b", "gpt2")),
    ],
)
def test_in_double_precision(name: str, d_model: int) -> None:
    for attends in ("eager", "sdpa"):
        compare(small(name, d_model=d_model), (2, 5), "fp64", attention=attends)


# of masks and kernels what there is: none, windows, chunks, biases with a gradient and without, a
# prefix, values of another width than the keys and of the same behind a prefix
OF_SDPA: list[tuple[str, dict[str, Any]]] = [
    ("llama-7b", {}),
    ("mistral-7b", {}),
    ("llama4-scout-text", {}),
    ("t5-base", {}),
    ("bloom-176b", {}),
    ("glm-130b", {}),
    ("deepseek-v3", {}),
    ("gopher-280b", {}),
    ("gemma3-27b-text", {}),
    ("deepseek-v2", {"kind": "prefix-decoder", "v_head_dim": 11}),
]


@pytest.mark.parametrize(("name", "changes"), OF_SDPA)
def test_each_way_that_sdpa_is_run(name: str, changes: dict[str, Any]) -> None:
    compare(small(name, **changes), (3, 11), attention="sdpa")


# --- one block of each kind

TWO_NORMS = {**TINY, "norm_placement": "parallel_two"}
SOME_ROTATE = {**TINY, "n_layers": 5, "mixer_pattern": "ANA", "nope_every": 2}
# with the type that they are trained in
MODELS: dict[str, tuple[ModelSpec, str]] = {
    "two norms that keep one x": (ModelSpec.from_dict(TWO_NORMS), "fp32"),
    "two norms that keep each its own": (ModelSpec.from_dict(TWO_NORMS), "bf16"),
    "two layer norms": (ModelSpec.from_dict({**TWO_NORMS, "norm": "layernorm"}), "fp32"),
    "norms around three branches": (small("t5-base", norm_placement="sandwich"), "bf16"),
    "a shared block": (small("zamba2-1.2b", n_layers=5), "bf16"),
    "mixers of two kinds, experts": (small("jamba-1.5-mini"), "bf16"),
    "both mixers in a block": (small("falcon-h1-0.5b"), "bf16"),
    "some rotate, some have no attention": (ModelSpec.from_dict(SOME_ROTATE), "bf16"),
    "positions of queries": (small("pangu-alpha-207b"), "bf16"),
    "no first norm": (ModelSpec.from_dict({**TINY, "first_norm": False}), "bf16"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [(3, 5), (3, 1), (1, 5)])
def test_small_sizes(name: str, sizes: tuple[int, int]) -> None:
    spec, dtype = MODELS[name]
    compare(spec, sizes, dtype)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_a_block_is_what_a_model_keeps_more_with_it(name: str, checkpointing: str) -> None:
    spec, dtype = MODELS[name]
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
        setup = Setup(checkpointing=checkpointing)
        measured.append(both(fewer, work, setup)[1].activation_bytes)
        counted.append(sum(n * blocks[kind] for kind, n in block_numbers(fewer).items()))
    assert len(measured) > 1
    assert [measured[0] - n for n in measured] == [counted[0] - n for n in counted]


def test_blocks_with_a_window_and_without_differ() -> None:
    counted = training_count(entry("gemma3-27b-text").spec(), Workload(), attention="sdpa")
    assert counted.activation_bytes_of_block is None
    assert "where some see a window" in counted.uncovered["activation_bytes_of_block"]
    mistral = training_count(entry("mistral-7b").spec(), Workload(), attention="sdpa")
    assert mistral.activation_bytes_of_block and [*mistral.activation_bytes_of_block] == ["dense"]


# --- by hand


def test_a_short_convolution_by_hand() -> None:
    """Its backward: 2 sequences of 5 tokens, d 13, filters of 4."""
    spec = small("lfm2-1.2b", mixer_pattern="RA", n_layers=2)
    tokens, positions = 2 * 5, 2 * (5 + 3)
    mixer = 2 * (tokens * 13 * (3 * 13 + 13) + positions * 13 * 4)
    counted = count_step(spec, Workload(batch_size=2, seq_len=5), Setup())
    assert counted.backward_matmul_flops_by_role is not None
    assert counted.backward_matmul_flops_by_role["recurrent"] == 2 * mixer


def test_what_is_not_repeated_of_a_gated_linear_recurrence() -> None:
    changes = {"mixer_pattern": "RA", "ffn_pattern": "NF", "n_layers": 2}
    spec = small("recurrentgemma-2b", **changes, d_model=14, lru_width=25, d_ff=17)
    counted = count_step(spec, Workload(batch_size=3, seq_len=5), Setup(checkpointing="full"))
    once, again = counted.matmul_flops_by_role, counted.recompute_matmul_flops_by_role
    assert once is not None and again is not None
    # linear_out [14, 25] of the block without a feed-forward, down_proj [14, 17] of the other,
    # each 2 FLOPs · 15 tokens; no attention without a feed-forward
    assert {role: once[role] - again[role] for role in ("ffn", "attention", "recurrent")} == {
        "ffn": 2 * 15 * 14 * 17,
        "attention": 0,
        "recurrent": 2 * 15 * 14 * 25,
    }


def test_what_the_loss_does_not_see_is_said() -> None:
    measured = metacount.train(small("deepseek-v3.2", n_layers=2, n_dense_layers=1))
    # d 13, a query latent of 23, 5 heads of 8: wq_b, wk, weights_proj, a norm with bias; 2 layers
    unseen = 2 * (23 * 5 * 8 + 13 * 8 + 13 * 5 + 2 * 8)
    assert f"{unseen:,} parameters have no gradient" in " ".join(measured.notes)
    assert measured.params - measured.trainable_params == unseen


def test_a_formula_is_judged() -> None:
    filtered = "k_c*(S + 2*k_c - min(S, k_c) - 1)"
    right = f"4*B*(N*d_i*(3*S*d + 3*S*d_s + 2*S*r_t + {filtered}) + S*V*d)"
    for text, verdict in ((right, "equal"), (right.replace("min(S, k_c)", "k_c"), "equal_here")):
        found = metacount.check(text, "mamba-2.8b", quantity="backward_matmul_flops")
        assert found.verdict == verdict


# --- what is refused, and what is wrong


def test_in_letters() -> None:
    work = Workload(seq_len=8)
    mistral = entry("mistral-7b").spec()
    form = closed_form(mistral, work, "activation_bytes:sdpa")
    assert form.total == training_count(mistral, work, attention="sdpa").activation_bytes
    with pytest.raises(SpecError, match="no formula in letters for latent attention"):
        closed_form(entry("deepseek-v3").spec(), work, "activation_bytes:sdpa")
    with pytest.raises(SpecError, match="nope_every has no formula for training in letters beside"):
        closed_form(ModelSpec.from_dict(SOME_ROTATE), work, "activation_bytes")


def test_windows_in_some_layers_beside_a_bias_are_refused() -> None:
    windows = {"position": "alibi", "window": 3, "window_pattern": "LG"}
    with pytest.raises(Uncovered, match="window_pattern has no formula for training with a bias"):
        compare(ModelSpec.from_dict({**TINY, **windows}))


def two_for_one(ops: Any) -> Any:
    """Two products in a backward for each of the forward, whatever a kernel or a mixer does."""
    return ((op.role, op.factors * op.flops) for op in ops)


# whose rule, its name, another rule, and the model and setup that show it
PLANTED: dict[str, tuple[Any, str, Any, str, dict[str, str]]] = {
    "a kernel keeps no result": (
        *(folds, "product_results", lambda ops: ()),
        *("mixtral-8x7b", {"attention": "flash", "checkpointing": "selective"}),
    ),
    "no mask of a window": (
        *(block, "sees_of", lambda spec, layer: Sees()),
        *("mistral-7b", {"attention": "sdpa"}),
    ),
    "no mask of a bias": (
        *(block, "sees_of", lambda spec, layer: Sees()),
        *("bloom-176b", {"attention": "sdpa"}),
    ),
    "a kernel for any widths": (
        *(attention, "_is_written", lambda *_: False),
        *("deepseek-v3", {"attention": "sdpa"}),
    ),
    "no loss": (ends, "loss", lambda tape, logits: None, "llama-7b", {}),
    "a choice has a gradient": (Tape, "without_gradients", lambda tape: tape, "deepseek-v3.2", {}),
    **{
        f"two products for one in {name}": (folds, "backward_flops", two_for_one, name, how)
        for name, how in (
            ("gpt2", {"attention": "sdpa"}),
            ("kimi-linear-48b-a3b", {}),
            ("qwen3-next-80b-a3b", {}),
            ("minimax-text-01", {}),
        )
    },
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_error_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, model, how = PLANTED[mistake]
    spec, work, setup = small(model), Workload(batch_size=3, seq_len=5), Setup(**how)
    counted, found = both(spec, work, setup)
    assert differing(counted, found) == {}
    monkeypatch.setattr(owner, name, wrong)
    assert differing(count_step(small(model), work, setup), found)
