"""Formulas of a training step against the step that is measured: every mixer but plain attention.

Sizes are small and odd, sequences shorter than a chunk, as long, and longer; and the sizes of
published models, with as few layers as hold one of each kind.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.release import daily, one_in

import metacount
from metacount import Setup, Training, Workload
from metacount.catalog import NotExpressible, entries, entry
from metacount.formulas import backward, backward_mixers
from metacount.formulas.forward import Pass
from metacount.formulas.indexer import block_index_flops, index_flops
from metacount.formulas.part import Part, chosen_tensors
from metacount.spec import ModelSpec
from metacount.textbook.training import TrainingCount, training_count

# a model of each mixer and of each way that it stands in a block, with layers that show it
SHORT: dict[str, dict[str, Any]] = {
    "lfm2-8b-a1b": {"mixer_pattern": "RRA", "n_dense_layers": 1},
    "recurrentgemma-2b": {"mixer_pattern": "RA"},
    "deepseek-v3.2": {"n_dense_layers": 1},
    "minimax-m3-text": {"n_dense_layers": 1, "index_pattern": "GI"},
    "longcat-flash": {},  # experts beside a feed-forward, zero experts
    "minimax-text-01": {"mixer_pattern": "RA"},
    "mamba-2.8b": {},
    "jamba-1.5-mini": {"mixer_pattern": "RA", "ffn_pattern": "FE"},
    "mamba2-130m": {},
    "falcon-h1-0.5b": {},
    "granite-4.0-h-tiny": {"mixer_pattern": "RA"},
    "nemotron-3-nano-30b-a3b": {
        "n_layers": 4,
        "mixer_pattern": "RNAN",
        "ffn_pattern": "NENF",
        "d_ff": 23,
    },
    "qwen3-next-80b-a3b": {"mixer_pattern": "RA"},
    "olmo-hybrid-7b": {"mixer_pattern": "RA"},
    "kimi-linear-48b-a3b": {"mixer_pattern": "RRA", "n_dense_layers": 1},
    # shared blocks, used more often than they are stored
    "zamba2-1.2b": {"mixer_pattern": "RSSRS"},
    "zamba2-7b": {"mixer_pattern": "RSSRS"},
}
# chunks of the miniatures are 4 positions, filters 3 or 4
RUNS = ((1, 11, "none"), (3, 4, "full"), (2, 8, "none"), (1, 3, "none"))


def shortened(name: str, spec: ModelSpec) -> ModelSpec:
    """As few layers as hold one of each kind."""
    changes = {"n_layers": 2, **SHORT[name]}
    changes["n_layers"] = max(changes["n_layers"], len(changes.get("mixer_pattern", "")))
    return spec.replace(**changes)


def small(name: str) -> ModelSpec:
    return shortened(name, miniature(entry(name).spec()))


def attends(name: str) -> bool:
    """Whether it has attention that a fused kernel computes."""
    spec = entry(name).spec()
    indexed = spec.index_top_k is not None or spec.index_block_len is not None
    return spec.attention != "none" and not indexed


def both(
    spec: ModelSpec, batch_size: int, seq_len: int, dtype: str = "bf16", **choices: Any
) -> tuple[TrainingCount, Training]:
    run = Workload(batch_size=batch_size, seq_len=seq_len, dtype=dtype)
    return training_count(spec, run, **choices), metacount.train(spec, run, Setup(**choices))


def assert_agree(counted: TrainingCount, measured: Training) -> None:
    """FLOPs of each phase, what the backward keeps, gradients and states: formula == measured."""
    assert counted.uncovered == {}
    assert counted.backward_matmul_flops_by_role == measured.backward_matmul_flops_by_role
    for name in (
        "matmul_flops",
        "recompute_matmul_flops",
        "activation_bytes",
        "trainable_params",
        "gradient_bytes",
        "optimizer_bytes",
        "master_weight_bytes",
    ):
        assert getattr(counted, name) == getattr(measured, name), name


def test_every_mixer_of_the_catalog_is_here() -> None:
    """By mixer, placement of norms and kind of attention: none is left out."""

    def structure(spec: ModelSpec) -> tuple[Any, ...]:
        indexed = spec.index_top_k is None, spec.index_block_len is None
        return spec.recurrent, spec.norm_placement, spec.output_gate, *indexed

    known = {structure(entry(name).spec()) for name in SHORT}
    for one in entries():
        try:
            spec = one.spec()
        except NotExpressible:
            continue
        if spec.recurrent != "none" or spec.n_index_heads is not None:
            assert structure(spec) in known, one.id


@daily(4)
@pytest.mark.parametrize("name", one_in(6, SHORT))
def test_a_step(name: str) -> None:
    spec = small(name)
    for batch_size, seq_len, way in RUNS:
        assert_agree(*both(spec, batch_size, seq_len, checkpointing=way))


@daily(4)
@pytest.mark.parametrize("name", one_in(4, SHORT, first=2))
def test_a_step_at_published_sizes(name: str) -> None:
    spec = shortened(name, entry(name).spec())
    # longer than every chunk but Mamba-2's and lightning's 256, and no multiple of any
    assert_agree(*both(spec, 1, 131, optimizer="muon", master_weights=True))


@daily(3)
@pytest.mark.parametrize("name", one_in(5, [name for name in SHORT if attends(name)]))
def test_fused_attention_beside_a_mixer(name: str) -> None:
    assert_agree(*both(small(name), 2, 5, attention="flash"))


NO_ADAPTERS = {"adapter_rank": None, "attention_adapters": False}


@daily(7)
@pytest.mark.parametrize(
    "changes",
    [
        NO_ADAPTERS,
        {"activation": "relu2"} | NO_ADAPTERS,
        # an adapter makes gate and up the halves of one tensor
        {"activation": "relu2"},
        {"activation": "relu", "gate_scale": 0.5},
        {"activation": "gelu", "gate_scale": 0.5},
        {"activation": "identity", "gate_scale": 0.5},
        {"activation": "relu2", "gated": False},
    ],
)
def test_the_feed_forward_of_a_shared_block(changes: dict[str, Any]) -> None:
    assert_agree(*both(small("zamba2-1.2b").replace(**changes), 2, 5))


@daily(4)
@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize(("qk_norm", "position"), [("none", "none"), ("head", "rope")])
@pytest.mark.parametrize(("attention", "dtype"), [("eager", "fp32"), ("flash", "bf16")])
def test_an_output_gate(
    heads: int, qk_norm: str, position: str, attention: str, dtype: str
) -> None:
    spec = ModelSpec.from_dict({**TINY, "n_layers": 1, "output_gate": True})
    kv_heads = 1 if heads == 1 else 2
    spec = spec.replace(n_heads=heads, n_kv_heads=kv_heads, qk_norm=qk_norm, position=position)
    assert_agree(*both(spec, 2, 5, dtype, attention=attention))


@daily(3)
@pytest.mark.parametrize("name", ["jamba-1.5-mini", "kimi-linear-48b-a3b", "deepseek-v3.2"])
def test_adapters_stand_beside_linear_layers(name: str) -> None:
    spec = small(name)
    targets = ("all-linear",)
    measured = metacount.train(
        spec, Workload(seq_len=5), Setup(lora_rank=3, lora_targets=targets, optimizer="adafactor")
    )
    part = Part(rank=3, targets=targets)
    counted = training_count(spec, Workload(seq_len=5), part=part, optimizer="adafactor")
    assert chosen_tensors(spec, part).trained_params == measured.trainable_params
    assert counted.optimizer_bytes == measured.optimizer_bytes
    assert counted.gradient_bytes == measured.gradient_bytes


@daily(5)
@pytest.mark.parametrize(
    ("name", "function", "wrong", "model"),
    [
        ("handed_on", backward_mixers, lambda chunk, state: 0, "kimi-linear-48b-a3b"),
        ("handed_on", backward_mixers, lambda chunk, state: 0, "qwen3-next-80b-a3b"),
        ("smaller", backward_mixers, lambda one, other: one, "minimax-text-01"),
        ("choosing_flops", backward, lambda *given: 0, "deepseek-v3.2"),
        ("beyond_twice", backward, lambda *given: 0, "minimax-text-01"),
    ],
)
def test_a_planted_error_of_a_backward_is_caught(
    name: str, function: Any, wrong: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, measured = both(small(model), 1, 7)
    assert counted.backward_matmul_flops == measured.backward_matmul_flops
    monkeypatch.setattr(function, name, wrong)
    again = training_count(small(model), Workload(batch_size=1, seq_len=7))
    assert again.backward_matmul_flops != measured.backward_matmul_flops


def test_by_hand() -> None:
    """One short convolution and its feed-forward, 2 sequences of 5 tokens, d 13, k_c 4, m 17."""
    spec = miniature(entry("lfm2-1.2b").spec()).replace(mixer_pattern="RA", n_layers=2)
    tokens, positions = 2 * 5, 2 * (5 + 3)
    mixer = 2 * (tokens * 13 * (3 * 13 + 13) + positions * 13 * 4)
    counted, _ = both(spec, 2, 5)
    assert counted.backward_matmul_flops_by_role is not None
    assert counted.backward_matmul_flops_by_role["recurrent"] == 2 * mixer


def test_every_indexer_chooses() -> None:
    spec = small("minimax-m3-text").replace(n_layers=3, n_dense_layers=1)
    run = Pass(batch_size=2, seq_len=5)
    sizes = {"n_index_heads": spec.n_index_heads, "index_head_dim": spec.index_head_dim}
    one = block_index_flops(10, 2 * 5 * 5, spec.d_model, **sizes)
    for pattern, n_layers in (("GI", 1), ("GII", 2), ("I", 3)):
        assert backward.choosing_flops(spec.replace(index_pattern=pattern), run) == n_layers * one
    latent = small("deepseek-v3.2")
    sizes = {"n_index_heads": latent.n_index_heads, "index_head_dim": latent.index_head_dim}
    rank = latent.q_lora_rank
    one = index_flops(10, 2 * 5 * 5, latent.d_model, q_lora_rank=rank, **sizes)
    assert backward.choosing_flops(latent, run) == latent.n_layers * one
    assert backward.choosing_flops(small("kimi-linear-48b-a3b"), run) == 0


def test_what_the_loss_does_not_see_is_said() -> None:
    measured = metacount.train(small("deepseek-v3.2"), Workload(seq_len=5))
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


@daily(2)
@pytest.mark.parametrize(("name", "ffns"), [("recurrentgemma-2b", "NF"), ("minimax-text-01", "NE")])
def test_a_mixer_alone_is_repeated_but_for_its_last_matrix(name: str, ffns: str) -> None:
    spec = small(name).replace(mixer_pattern="RA", ffn_pattern=ffns)
    assert_agree(*both(spec, 3, 4, checkpointing="full"))


def test_what_is_not_repeated_of_a_gated_linear_recurrence() -> None:
    spec = small("recurrentgemma-2b").replace(ffn_pattern="NF", d_model=14, lru_width=25, d_ff=17)
    run = Pass(batch_size=3, seq_len=5, checkpointing="full")
    # linear_out [14, 25] of the block without a feed-forward, down_proj [14, 17] of the other,
    # each 2 FLOPs · 15 tokens; no attention without a feed-forward
    assert backward.not_repeated(spec, run) == {
        "ffn": 2 * 15 * 14 * 17,
        "attention": 0,
        "recurrent": 2 * 15 * 14 * 25,
    }
