"""Mixers that keep a state, beside transformers' layers.

With transformers' weights ours give what theirs give, in float64; and the counts of formula,
reference and transformers are equal, for random sizes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from helpers.in_float64 import in_float64, randomise
from helpers.recurrent_cache import StateCache, in_pieces
from helpers.release import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from metacount.formulas.mixers import mixer_counts, run_mixer
from metacount.formulas.tape import TOKENS, Run, Tape, flops_of, params_of
from metacount.measure.counter import FlopCounter
from metacount.modules.recurrent import make_recurrent
from metacount.spec.mixers import GatedDelta, KimiDelta, Lightning, Mamba, Mamba2
from metacount.spec.stack import Norms

torch.set_num_threads(1)

RMS = Norms(kind="rmsnorm", eps=0.2)
N_LAYERS = 5


class Theirs(NamedTuple):
    """transformers' config and layer of a type of model: its keys and our fields, other keys."""

    config: str
    layer: str
    keys: dict[str, str]
    others: dict[str, Any]


DELTA = {
    "linear_num_key_heads": "n_k_heads",
    "linear_num_value_heads": "n_v_heads",
    "linear_key_head_dim": "k_head_dim",
    "linear_value_head_dim": "v_head_dim",
    "linear_conv_kernel_dim": "conv_kernel",
}
LINEAR = {"layer_types": ["linear_attention"] * 4 + ["full_attention"], "rms_norm_eps": 0.2}
KIMI = {
    "linear_num_heads": "n_heads",
    "linear_head_dim": "head_dim",
    "linear_conv_kernel_dim": "conv_kernel",
}
MINIMAX = {
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_heads",
    "head_dim": "head_dim",
    "block_size": "chunk_size",
}
MAMBA = {"state_size": "state_dim", "time_step_rank": "dt_rank", "conv_kernel": "conv_kernel"}
JAMBA = {
    "mamba_d_state": "state_dim",
    "mamba_dt_rank": "dt_rank",
    "mamba_d_conv": "conv_kernel",
}
GROUPS = {"n_groups": "n_groups", "chunk_size": "chunk_size", "conv_kernel": "conv_kernel"}
MAMBA2 = {"num_heads": "n_heads", "head_dim": "head_dim", "state_size": "state_dim", **GROUPS}
NEMOTRON = {
    "mamba_num_heads": "n_heads",
    "mamba_head_dim": "head_dim",
    "ssm_state_size": "state_dim",
    **GROUPS,
}
FALCON = {
    "mamba_n_heads": "n_heads",
    "mamba_d_head": "head_dim",
    "mamba_d_state": "state_dim",
    "mamba_n_groups": "n_groups",
    "mamba_chunk_size": "chunk_size",
    "mamba_d_conv": "conv_kernel",
}
THEIRS = {
    "qwen3_next": Theirs("Qwen3NextConfig", "Qwen3NextGatedDeltaNet", DELTA, LINEAR),
    "qwen3_5": Theirs("Qwen3_5TextConfig", "Qwen3_5GatedDeltaNet", DELTA, LINEAR),
    "olmo_hybrid": Theirs("OlmoHybridConfig", "OlmoHybridGatedDeltaNet", DELTA, LINEAR),
    "kimi_linear": Theirs(
        "KimiLinearConfig", "KimiLinearDeltaAttention", KIMI, {"rms_norm_eps": 0.2}
    ),
    "minimax": Theirs("MiniMaxConfig", "MiniMaxLightningAttention", MINIMAX, {}),
    "mamba": Theirs("MambaConfig", "MambaMixer", MAMBA, {}),
    "falcon_mamba": Theirs("FalconMambaConfig", "FalconMambaMixer", MAMBA, {"mixer_rms_eps": 0.3}),
    "jamba": Theirs(
        "JambaConfig", "JambaMambaMixer", JAMBA, {"mamba_expand": 2, "rms_norm_eps": 0.2}
    ),
    "mamba2": Theirs("Mamba2Config", "Mamba2Mixer", MAMBA2, {"layer_norm_epsilon": 0.2}),
    "falcon_h1": Theirs(
        "FalconH1Config",
        "FalconH1Mixer",
        FALCON,
        {"mamba_d_ssm": 30, "rms_norm_eps": 0.2, "ssm_in_multiplier": 1.0},
    ),
    "nemotron_h": Theirs(
        "NemotronHConfig",
        "NemotronHMamba2Mixer",
        NEMOTRON,
        {"layer_norm_epsilon": 0.2, "layers_block_type": ["mamba"], "num_hidden_layers": 1},
    ),
}


def their_layer(
    kind: str, part: Any, d_model: int, layer: int = 0, **more: Any
) -> tuple[nn.Module, Any]:
    """transformers' layer with the sizes of a part, and its config."""
    theirs = THEIRS[kind]
    sizes = {key: getattr(part, field) for key, field in theirs.keys.items()}
    keys = {"hidden_size": d_model, "num_hidden_layers": N_LAYERS, **sizes, **theirs.others, **more}
    if kind == "mamba2":
        keys["expand"] = part.n_heads * part.head_dim // d_model
    config = getattr(import_module("transformers"), theirs.config)(**keys)
    if isinstance(part, Mamba):
        config.intermediate_size = part.d_ssm
    # its model fills the weights, not the mixer; Jamba's mixer does not ask
    asks = isinstance(part, Mamba | Mamba2) and kind != "jamba"
    bare = {"initialize_mixer_weights": False} if asks else {}
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    made = getattr(module, theirs.layer)(config, layer, **bare).eval()
    if kind == "falcon_h1":  # its model makes this from ssm_multipliers, in float32
        made.register_buffer("mup_vector", torch.ones(94), persistent=False)
    return made, config


def renamed(kind: str, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights under our names, in our order: a key head's rows stand together in theirs."""
    if kind not in ("qwen3_next", "qwen3_5", "minimax"):
        return theirs
    ours = {"norm": "o_norm", "out_proj": "o_proj"}
    found = {".".join(ours.get(word, word) for word in n.split(".")): t for n, t in theirs.items()}
    if kind == "minimax":  # its decays follow from sizes
        return {n: t for n, t in found.items() if n.endswith("weight")}
    if kind == "qwen3_next":
        fused, gates = (found.pop(f"in_proj_{x}.weight") for x in ("qkvz", "ba"))
        q, k, v, z = fused.unflatten(0, (2, -1)).split((5, 5, 14, 14), dim=1)
        b, a = gates.unflatten(0, (2, -1)).chunk(2, dim=1)
        q, k, v, z, b, a = (t.flatten(0, 1) for t in (q, k, v, z, b, a))
    else:
        q, k, v = found.pop("in_proj_qkv.weight").split((10, 10, 28))
        z, b, a = (found.pop(f"in_proj_{n}.weight") for n in "zba")
    apart = {"q": q, "k": k, "v": v, "g": z, "b": b, "a": a}
    return {**found, **{f"{n}_proj.weight": t for n, t in apart.items()}}


def distance(actual: Tensor, expected: Tensor) -> float:
    largest = expected.abs().max()
    assert 1e-3 < largest < 1e9
    return ((actual - expected).abs().max() / largest).item()


# shorter than a chunk of 64 or 16, equal to, longer; the same of a kernel and a chunk of 4
LENGTHS, SHORT = (1, 3, 16, 63, 64, 65, 130), (1, 3, 4, 5, 9)
OF_DELTA = {"n_k_heads": 2, "n_v_heads": 4, "k_head_dim": 5, "v_head_dim": 7, "chunk_size": 64}
OF_MAMBA = {"state_dim": 5, "d_ssm": 6, "dt_rank": 3, "conv_kernel": 4}
OF_MAMBA2 = {"state_dim": 7, "n_heads": 6, "head_dim": 5, "n_groups": 2, "chunk_size": 4}


def delta(**changes: Any) -> GatedDelta:
    return GatedDelta(**{**OF_DELTA, "conv_kernel": 3, **changes})


def mamba(**changes: Any) -> Mamba:
    return Mamba(**{**OF_MAMBA, **changes})


def mamba2(**changes: Any) -> Mamba2:
    return Mamba2(**{**OF_MAMBA2, "conv_kernel": 3, **changes})


BIASED = {"in_bias": True, "out_bias": True}
BEFORE = {"mamba_rms_norm": True, "mamba_norm_before_gate": True}
AFTER = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
NEGATIVE = {"norm_eps": 1e-5, "negative": True}
KIMI_PART = KimiDelta(conv_kernel=3, chunk_size=64, n_heads=3, head_dim=5)
LIGHTNING = Lightning(chunk_size=16, n_heads=3, head_dim=6, norm_eps=1e-6)
# type of model, part, width of the model, other keys of the config, layer
VALUES: list[tuple[str, Any, int, dict[str, Any], int]] = [
    ("qwen3_next", delta(), 13, {}, 0),
    ("qwen3_5", delta(), 13, {}, 0),
    ("olmo_hybrid", delta(**NEGATIVE), 13, {"linear_allow_neg_eigval": True}, 0),
    ("olmo_hybrid", delta(norm_eps=1e-5), 13, {"linear_allow_neg_eigval": False}, 0),
    ("kimi_linear", KIMI_PART, 13, {}, 0),
    *(("minimax", LIGHTNING, 13, {}, layer) for layer in (0, 1, 4)),
    ("mamba", mamba(), 11, {}, 0),
    ("mamba", mamba(**BIASED), 11, {"use_bias": True}, 0),
    ("mamba", mamba(conv_bias=False), 11, {"use_conv_bias": False}, 0),
    ("falcon_mamba", mamba(norms="plain", norm_eps=0.3), 11, {}, 0),
    ("jamba", mamba(norms="affine"), 3, {}, 0),
    ("mamba2", mamba2(), 15, {}, 0),
    ("mamba2", mamba2(**BIASED), 15, {"use_bias": True}, 0),
    ("mamba2", mamba2(conv_bias=False), 15, {"use_conv_bias": False}, 0),
    ("falcon_h1", mamba2(norm="before_gate"), 15, BEFORE, 0),
    ("falcon_h1", mamba2(), 15, AFTER, 0),
    ("falcon_h1", mamba2(norm="none"), 15, {"mamba_rms_norm": False}, 0),
    # limits of the step, kept in decode too, where transformers' PyTorch code forgets them
    ("mamba2", mamba2(dt_min=0.4, dt_max=0.9), 15, {"time_step_limit": (0.4, 0.9)}, 0),
    ("nemotron_h", mamba2(dt_min=0.4), 15, {"time_step_min": 0.4}, 0),
]


@daily(3)
@pytest.mark.parametrize(("kind", "part", "d_model", "more", "layer"), VALUES)
def test_values(kind: str, part: Any, d_model: int, more: dict[str, Any], layer: int) -> None:
    """Whole, token by token, and after a change that must be seen."""
    of_space = isinstance(part, Mamba | Mamba2)
    bound = 1e-13 if of_space else 1e-12  # of the largest value
    with in_float64():
        theirs, _ = their_layer(kind, part, d_model, layer, **more)
        theirs.double()
    randomise(theirs, seed=3)
    ours = make_recurrent(part, d_model, RMS, layer=layer, n_layers=N_LAYERS).double()
    ours.load_state_dict(renamed(kind, dict(theirs.state_dict())))
    given = {"position_embeddings": None, "attention_mask": None} if kind == "minimax" else {}
    for length in SHORT if of_space else LENGTHS:
        x = torch.randn(2, length, d_model, dtype=torch.float64)
        with torch.no_grad(), in_float64():
            expected = theirs(x, **given)
        expected = expected[0] if isinstance(expected, tuple) else expected
        with torch.no_grad():
            assert distance(ours(x), expected) < bound
            token_by_token, _ = in_pieces(ours, x, *(1,) * length)
            assert distance(token_by_token, expected) < bound
    with torch.no_grad():
        changed = ours.get_parameter("A_log") if of_space else next(ours.parameters())
        changed.view(-1)[0] += 1e-6
        assert distance(ours(x), expected) > bound


# --- counts: formula, reference and transformers, of any sizes


def counted(part: Any, d_model: int, batch: int, length: int) -> list[Any]:
    """Parameters, FLOPs of a prefill and of a token more, values of each state: by formula."""
    flops = []
    for decode in (False, True):
        n = 1 if decode else length
        counts = {TOKENS: batch * n, **mixer_counts(part, batch, n, decode=decode)}
        run = Run(counts=counts, batch_size=batch, n_queries=n, n_keys=length, decode=decode)
        tape = Tape(run)
        run_mixer(tape, part, tape.tensor(d_model, TOKENS, grad=True))
        flops.append(flops_of([*tape.weights, *tape.products], counts))
    return [params_of(tape.weights), *flops, *(batch * state.size for state in tape.states)]


def measured(
    module: nn.Module, sizes: tuple[int, int, int], name: str, cache: Any, **given: Any
) -> list[int]:
    """Parameters, FLOPs of a prefill and of a token more: as a layer runs, with its cache."""
    batch, length, d_model = sizes
    found = [sum(p.numel() for p in module.parameters())]
    for n in (length, 1):
        counter = FlopCounter()
        with torch.no_grad(), torch.device("meta"), counter.watching(module):
            module(torch.empty(batch, n, d_model), **{name: cache}, **given)
        found.append(sum(counter.totals().values()))
    return found


def of_transformers(
    kind: str, part: Any, sizes: tuple[int, int, int], layer: int, **more: Any
) -> list[int]:
    """The counts of transformers' layer, and the values of its states."""
    with torch.device("meta"):
        theirs, config = their_layer(kind, part, sizes[-1], layer, **more)
    if kind == "minimax":
        from transformers.models.minimax.modeling_minimax import MiniMaxCache

        cache, given = MiniMaxCache(), {"position_embeddings": None, "attention_mask": None}
        found = measured(theirs, sizes, "past_key_values", cache, **given)
        return [*found, cache.get_linear_cache(layer).numel()]
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    found = measured(theirs, sizes, "cache_params", cache)
    kept = cache.layers[layer]
    assert kept.recurrent_states[0].dtype == torch.float32
    return [*found, kept.conv_states[0].numel(), kept.recurrent_states[0].numel()]


SIZE, SEVEN, THREE = st.integers(1, 5), st.integers(1, 7), st.integers(1, 3)
LENGTH = st.sampled_from([1, 2, 3, 63, 64, 65, 128, 131])
DRAWN = {
    "gated delta": st.builds(
        lambda groups, per_group, **sizes: delta(
            n_k_heads=groups, n_v_heads=groups * per_group, **sizes
        ),
        *(SIZE, THREE),
        k_head_dim=SIZE,
        v_head_dim=SIZE,
        conv_kernel=SIZE,
    ),
    "kimi delta": st.builds(
        KimiDelta, conv_kernel=SIZE, chunk_size=st.just(64), n_heads=SIZE, head_dim=SIZE
    ),
    "lightning": st.builds(
        Lightning, chunk_size=st.integers(1, 9), n_heads=SIZE, head_dim=SIZE.map(lambda n: 2 * n)
    ),
    "mamba": st.builds(
        Mamba,
        conv_kernel=SEVEN,
        state_dim=SEVEN,
        d_ssm=SEVEN.map(lambda n: 2 * n),
        dt_rank=SEVEN,
    ),
    "mamba2": st.builds(
        lambda groups, per_group, **sizes: mamba2(
            n_groups=groups, n_heads=groups * per_group, **sizes
        ),
        *(THREE, SEVEN),
        head_dim=SEVEN,
        state_dim=st.integers(2, 7),
        chunk_size=st.integers(2, 6),
        conv_kernel=SEVEN,
    ),
}
# types of models, lengths, examples
KINDS: dict[str, tuple[tuple[str, ...], st.SearchStrategy[int], int]] = {
    "gated delta": (("qwen3_next", "qwen3_5", "olmo_hybrid"), LENGTH, 8),
    "kimi delta": (("kimi_linear",), LENGTH, 6),
    "lightning": (("minimax",), st.integers(1, 20), 8),
    "mamba": (("mamba",), st.integers(1, 9), 25),
    "mamba2": (("mamba2",), st.integers(1, 13), 40),
}


@daily(5)
@pytest.mark.parametrize("name", KINDS)
def test_counts(name: str) -> None:
    kinds, lengths, examples = KINDS[name]

    @settings(max_examples=examples, deadline=None)
    @given(DRAWN[name], SIZE, THREE, lengths)
    def agree(part: Any, d_model: int, batch: int, length: int) -> None:
        if isinstance(part, Mamba2):  # expand is a whole number
            d_model = part.n_heads * part.head_dim
        sizes, layer = (batch, length, d_model), 1 if name == "lightning" else 0
        expected = counted(part, d_model, batch, length)
        cache = StateCache()
        with torch.device("meta"):
            ours = make_recurrent(part, d_model, RMS, layer=layer, n_layers=N_LAYERS)
        found = measured(ours, sizes, "cache", cache)
        states = [cache.states[name] for name in sorted(cache.states)]
        assert [*found, *(state.numel() for state in states)] == expected
        assert name == "lightning" or states[-1].dtype == torch.float32
        for kind in kinds:
            assert of_transformers(kind, part, sizes, layer) == expected, kind

    agree()
