"""The mixers with transformers' weights give what transformers' mixers give, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.in_float64 import in_float64, randomise
from helpers.recurrent_cache import StateCache, in_pieces
from helpers.release import one_day_in
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from metacount.formulas import mamba as mamba_formulas
from metacount.formulas import mamba2 as mamba2_formulas
from metacount.formulas.terms import TOKENS, flops_of, params_of
from metacount.measure.counter import FlopCounter
from metacount.modules.mamba import Mamba
from metacount.modules.mamba2 import Mamba2
from metacount.spec.mamba import Mamba as MambaPart
from metacount.spec.mamba2 import Mamba2 as Mamba2Part
from metacount.spec.norm import Norms

torch.set_num_threads(1)

BOUND = 1e-13  # of the largest value
RMS = Norms(kind="rmsnorm", eps=0.2)
LENGTHS = (1, 3, 4, 5, 9)  # shorter than a kernel and a chunk, equal to, longer


def compared(theirs: Any, ours: Any, d_model: int) -> None:
    """Whole, token by token, and after a change that must be seen."""
    randomise(theirs, seed=3)
    ours.double().load_state_dict(theirs.state_dict())
    for length in LENGTHS:
        x = torch.randn(2, length, d_model, dtype=torch.float64)
        with torch.no_grad(), in_float64():
            expected: Tensor = theirs(x)
        with torch.no_grad():
            token_by_token, _ = in_pieces(ours, x, *(1,) * length)
            assert distance(ours(x), expected) < BOUND
            assert distance(token_by_token, expected) < BOUND
    with torch.no_grad():
        ours.A_log.view(-1)[0] += 1e-6
        assert distance(ours(x), expected) > BOUND


def distance(actual: Tensor, expected: Tensor) -> float:
    largest = expected.abs().max()
    assert 1e-3 < largest < 1e9
    return ((actual - expected).abs().max() / largest).item()


def mixer(kind: str, name: str, keys: dict[str, Any]) -> Any:
    """The mixer of a type of transformers, as its first layer has it."""
    from importlib import import_module

    from transformers import AutoConfig

    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    config = AutoConfig.for_model(kind, num_hidden_layers=1, **keys)
    config.intermediate_size = 6
    with in_float64():
        # its model fills the weights, not the mixer; Jamba's mixer does not ask
        bare = {} if kind == "jamba" else {"initialize_mixer_weights": False}
        made = getattr(module, name)(config, 0, **bare).double().eval()
        if kind == "falcon_h1":  # its model makes this from ssm_multipliers, in float32
            made.register_buffer("mup_vector", torch.ones(94), persistent=False)
    return made


MAMBA = {"hidden_size": 11, "state_size": 5, "time_step_rank": 3, "conv_kernel": 4}
JAMBA = {
    "hidden_size": 3,
    "mamba_d_state": 5,
    "mamba_dt_rank": 3,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "rms_norm_eps": 0.2,
}


@pytest.mark.parametrize(
    ("kind", "name", "keys", "options"),
    [
        ("mamba", "MambaMixer", MAMBA, {}),
        ("mamba", "MambaMixer", MAMBA | {"use_bias": True}, {"in_bias": True, "out_bias": True}),
        ("mamba", "MambaMixer", MAMBA | {"use_conv_bias": False}, {"conv_bias": False}),
        (
            "falcon_mamba",
            "FalconMambaMixer",
            MAMBA | {"mixer_rms_eps": 0.3},
            {"norms": "plain", "norm_eps": 0.3},
        ),
        ("jamba", "JambaMambaMixer", JAMBA, {"norms": "affine"}),
    ],
)
def test_mamba(kind: str, name: str, keys: dict[str, Any], options: dict[str, Any]) -> None:
    part = MambaPart(conv_kernel=4, state_dim=5, d_ssm=6, dt_rank=3, **options)
    compared(
        mixer(kind, name, keys), Mamba(part, keys["hidden_size"], norms=RMS), keys["hidden_size"]
    )


MAMBA2 = {
    "num_heads": 6,
    "head_dim": 5,
    "state_size": 7,
    "n_groups": 2,
    "chunk_size": 4,
    "conv_kernel": 3,
    "hidden_size": 15,
    "expand": 2,
    "layer_norm_epsilon": 0.2,
}
FALCON = {
    "mamba_n_heads": 6,
    "mamba_d_head": 5,
    "mamba_d_state": 7,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 4,
    "mamba_d_conv": 3,
    "hidden_size": 15,
    "mamba_d_ssm": 30,
    "rms_norm_eps": 0.2,
    "ssm_in_multiplier": 1.0,
    "mamba_rms_norm": True,
}
NEMOTRON = {
    "mamba_num_heads": 6,
    "mamba_head_dim": 5,
    "ssm_state_size": 7,
    "n_groups": 2,
    "chunk_size": 4,
    "conv_kernel": 3,
    "hidden_size": 15,
    "layer_norm_epsilon": 0.2,
    "time_step_min": 0.4,
    "layers_block_type": ["mamba"],
}


@pytest.mark.parametrize(
    ("kind", "name", "keys", "options"),
    [
        ("mamba2", "Mamba2Mixer", MAMBA2, {}),
        ("mamba2", "Mamba2Mixer", MAMBA2 | {"use_bias": True}, {"in_bias": True, "out_bias": True}),
        ("mamba2", "Mamba2Mixer", MAMBA2 | {"use_conv_bias": False}, {"conv_bias": False}),
        (
            "falcon_h1",
            "FalconH1Mixer",
            FALCON | {"mamba_norm_before_gate": True},
            {"norm": "before_gate"},
        ),
        ("falcon_h1", "FalconH1Mixer", FALCON | {"mamba_norm_before_gate": False}, {}),
        ("falcon_h1", "FalconH1Mixer", FALCON | {"mamba_rms_norm": False}, {"norm": "none"}),
    ],
)
def test_mamba2(kind: str, name: str, keys: dict[str, Any], options: dict[str, Any]) -> None:
    part = Mamba2Part(
        conv_kernel=3, state_dim=7, n_heads=6, head_dim=5, n_groups=2, chunk_size=4, **options
    )
    compared(mixer(kind, name, keys), Mamba2(part, 15, norms=RMS), 15)


@pytest.mark.parametrize(
    ("kind", "name", "keys", "options"),
    [
        (
            "mamba2",
            "Mamba2Mixer",
            MAMBA2 | {"time_step_limit": (0.4, 0.9)},
            {"dt_min": 0.4, "dt_max": 0.9},
        ),
        ("nemotron_h", "NemotronHMamba2Mixer", NEMOTRON, {"dt_min": 0.4}),
    ],
)
def test_limits_of_the_step(
    kind: str, name: str, keys: dict[str, Any], options: dict[str, Any]
) -> None:
    """Kept in decode too, where transformers' PyTorch code forgets them."""
    part = Mamba2Part(
        conv_kernel=3, state_dim=7, n_heads=6, head_dim=5, n_groups=2, chunk_size=4, **options
    )
    compared(mixer(kind, name, keys), Mamba2(part, 15, norms=RMS), 15)


# ---- counts: formula, reference and transformers, of any sizes


def flops(module: nn.Module, x: Tensor, **given: Any) -> int:
    counter = FlopCounter()
    with torch.no_grad(), counter.watching(module):
        module(x, **given)
    return sum(counter.ran.values())


def measured(theirs: Any, ours: Any, config: Any, sizes: tuple[int, int, int]) -> Any:
    """Parameters, FLOPs of a prefill and of a token more, both states; of transformers and ours."""
    from transformers import DynamicCache

    batch, length, width = sizes
    cache, own = DynamicCache(config=config), StateCache()
    found = []
    with torch.device("meta"):
        for module, given in ((theirs, {"cache_params": cache}), (ours, {"cache": own})):
            found.append([sum(p.numel() for p in module.parameters())])
            for n in (length, 1):
                found[-1].append(flops(module, torch.empty(batch, n, width), **given))
    layer = cache.layers[0]
    found[0] += [layer.conv_states[0].numel(), layer.recurrent_states[0].numel()]
    found[1] += [own.states["conv"].numel(), own.states["recurrent"].numel()]
    assert own.states["recurrent"].dtype == layer.recurrent_states[0].dtype == torch.float32
    return found


SIZE = st.integers(1, 7)


@one_day_in(6)
@settings(max_examples=25, deadline=None)
@given(SIZE, SIZE, SIZE, SIZE, st.integers(1, 3), st.integers(1, 9))
def test_counts_of_mamba(width: int, state: int, rank: int, kernel: int, b: int, n: int) -> None:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = MambaConfig(
        hidden_size=width,
        state_size=state,
        time_step_rank=rank,
        expand=2,
        conv_kernel=kernel,
        num_hidden_layers=1,
    )
    part = MambaPart(conv_kernel=kernel, state_dim=state, d_ssm=2 * width, dt_rank=rank)
    with torch.device("meta"):
        theirs, ours = MambaMixer(config, 0).eval(), Mamba(part, width, norms=RMS)
    inner = {"d_ssm": 2 * width, "ssm_state_dim": state}
    weights = mamba_formulas.mamba_weights(width, **inner, dt_rank=rank, conv_kernel=kernel)
    terms = (*weights, *mamba_formulas.mamba_products(**inner))
    prefill = mamba_formulas.mamba_run(b, n, conv_kernel=kernel)
    decode = mamba_formulas.mamba_run(b, 1, conv_kernel=kernel, continued=True)
    expected = [
        params_of(weights),
        flops_of(terms, {TOKENS: b * n, **prefill}),
        flops_of(terms, {TOKENS: b, **decode}),
        *(b * one.size for one in mamba_formulas.mamba_states(**inner, conv_kernel=kernel)),
    ]
    assert measured(theirs, ours, config, (b, n, width)) == [expected, expected]


@one_day_in(6)
@settings(max_examples=40, deadline=None)
@given(
    SIZE,
    SIZE,
    st.integers(1, 3),
    st.integers(2, 7),
    st.integers(2, 6),
    SIZE,
    st.integers(1, 3),
    st.integers(1, 13),
)
def test_counts_of_mamba2(
    per_group: int, p: int, groups: int, state: int, chunk: int, kernel: int, b: int, n: int
) -> None:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    heads = per_group * groups
    width = heads * p
    config = Mamba2Config(
        num_heads=heads,
        head_dim=p,
        hidden_size=width,
        expand=1,
        state_size=state,
        n_groups=groups,
        chunk_size=chunk,
        conv_kernel=kernel,
        num_hidden_layers=1,
    )
    part = Mamba2Part(
        conv_kernel=kernel,
        state_dim=state,
        n_heads=heads,
        head_dim=p,
        n_groups=groups,
        chunk_size=chunk,
    )
    with torch.device("meta"):
        theirs, ours = Mamba2Mixer(config, 0).eval(), Mamba2(part, width, norms=RMS)
    scan = {"n_ssm_heads": heads, "ssm_head_dim": p, "ssm_state_dim": state}
    sizes = {**scan, "n_ssm_groups": groups, "conv_kernel": kernel}
    weights = mamba2_formulas.mamba2_weights(width, **sizes)
    chunks = (*weights, *mamba2_formulas.mamba2_products(**scan, ssm_chunk_size=chunk))
    step = (*weights, *mamba2_formulas.mamba2_decode_products(**scan))
    prefill = mamba2_formulas.mamba2_run(b, n, conv_kernel=kernel, ssm_chunk_size=chunk)
    expected = [
        params_of(weights),
        flops_of(chunks, {TOKENS: b * n, **prefill}),
        flops_of(step, {TOKENS: b, **mamba2_formulas.mamba2_decode_run(b)}),
        *(b * one.size for one in mamba2_formulas.mamba2_states(**sizes)),
    ]
    assert measured(theirs, ours, config, (b, n, width)) == [expected, expected]
