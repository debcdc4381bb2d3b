"""Linear attention with transformers' weights gives what transformers' layers give, in float64.

And the counts of formula, reference and transformers are equal, for random sizes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.in_float64 import in_float64, randomise
from helpers.recurrent_cache import StateCache, in_pieces
from helpers.release import daily, one_day_in
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from metacount.formulas import gated_delta as delta_formulas
from metacount.formulas import kimi_delta as kimi_formulas
from metacount.formulas import lightning as lightning_formulas
from metacount.formulas.terms import TOKENS, flops_of, params_of
from metacount.measure.counter import FlopCounter
from metacount.modules.gated_delta import GatedDelta
from metacount.modules.kimi_delta import KimiDelta
from metacount.modules.lightning import Lightning
from metacount.spec.gated_delta import GatedDelta as GatedDeltaPart
from metacount.spec.kimi_delta import KimiDelta as KimiDeltaPart
from metacount.spec.lightning import Lightning as LightningPart
from metacount.spec.norm import Norms

torch.set_num_threads(1)

BOUND = 1e-12  # of the largest value
RMS = Norms(kind="rmsnorm", eps=0.2)
LENGTHS = (1, 3, 16, 63, 64, 65, 130)  # shorter than a chunk of 64 or 16, equal to, longer


def qwen3_next(d: int, heads: tuple[int, int], widths: tuple[int, int], kernel: int) -> Any:
    """Their layer with all projections of queries, keys, values and gate in one."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(**delta_keys(d, heads, widths, kernel))
    return Qwen3NextGatedDeltaNet(config, 0), config


def qwen3_5(d: int, heads: tuple[int, int], widths: tuple[int, int], kernel: int) -> Any:
    """Their layer with separate gates."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = Qwen3_5TextConfig(**delta_keys(d, heads, widths, kernel))
    return Qwen3_5GatedDeltaNet(config, 0), config


def olmo_hybrid(d: int, heads: tuple[int, int], widths: tuple[int, int], kernel: int) -> Any:
    """Their layer with all projections separate."""
    from transformers import OlmoHybridConfig
    from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet

    config = OlmoHybridConfig(**delta_keys(d, heads, widths, kernel))
    return OlmoHybridGatedDeltaNet(config, 0), config


def delta_keys(
    d: int, heads: tuple[int, int], widths: tuple[int, int], kernel: int
) -> dict[str, Any]:
    return {
        "hidden_size": d,
        "linear_num_key_heads": heads[0],
        "linear_num_value_heads": heads[1],
        "linear_key_head_dim": widths[0],
        "linear_value_head_dim": widths[1],
        "linear_conv_kernel_dim": kernel,
        "rms_norm_eps": 0.2,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }


def kimi_linear(d: int, heads: int, width: int, kernel: int) -> Any:
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    config = KimiLinearConfig(
        hidden_size=d,
        linear_num_heads=heads,
        linear_head_dim=width,
        rms_norm_eps=0.2,
        linear_conv_kernel_dim=kernel,
        num_hidden_layers=5,
    )
    return KimiLinearDeltaAttention(config, 0), config


def minimax(d: int, heads: int, width: int, chunk: int, layer: int = 1) -> Any:
    from transformers import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    config = MiniMaxConfig(
        hidden_size=d,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width,
        block_size=chunk,
        num_hidden_layers=5,
    )
    return MiniMaxLightningAttention(config, layer), config


def named_as_ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The norm of the output and the projection out of it under our names."""
    ours = {"norm": "o_norm", "out_proj": "o_proj"}
    return {".".join(ours.get(word, word) for word in n.split(".")): t for n, t in theirs.items()}


def renamed(kind: str, theirs: dict[str, Tensor], n_groups: int) -> dict[str, Tensor]:
    """Their weights under our names, in our order: a key head's rows stand together in theirs."""
    if kind == "olmo_hybrid":
        return theirs
    found = {n: t for n, t in named_as_ours(theirs).items() if not n.startswith("in_proj")}
    if kind == "qwen3_next":
        fused, gates = (theirs.pop(f"in_proj_{x}.weight") for x in ("qkvz", "ba"))
        grouped = fused.unflatten(0, (n_groups, -1))
        q, k, v, z = grouped.split((5, 5, 14, 14), dim=1)
        b, a = gates.unflatten(0, (n_groups, -1)).chunk(2, dim=1)
        apart = {"q": q, "k": k, "v": v, "g": z, "b": b, "a": a}
        return {**found, **{f"{n}_proj.weight": t.flatten(0, 1) for n, t in apart.items()}}
    q, k, v = theirs["in_proj_qkv.weight"].split((10, 10, 28))
    z, b, a = (theirs[f"in_proj_{n}.weight"] for n in "zba")
    apart = {"q": q, "k": k, "v": v, "g": z, "b": b, "a": a}
    return {**found, **{f"{n}_proj.weight": t for n, t in apart.items()}}


def same(theirs: Any, ours: Any, d_model: int, **given: Any) -> None:
    """Whole, token by token, and after a change that must be seen."""
    for length in LENGTHS:
        x = torch.randn(2, length, d_model, dtype=torch.float64)
        with torch.no_grad(), in_float64():
            expected = theirs(x, **given)
        expected = expected[0] if isinstance(expected, tuple) else expected
        with torch.no_grad():
            assert distance(ours(x), expected) < BOUND
            token_by_token, _ = in_pieces(ours, x, *(1,) * length)
            assert distance(token_by_token, expected) < BOUND
    with torch.no_grad():
        next(ours.parameters()).view(-1)[0] += 1e-6
        assert distance(ours(x), expected) > BOUND


def distance(actual: Tensor, expected: Tensor) -> float:
    largest = expected.abs().max()
    assert 1e-3 < largest < 1e9
    return ((actual - expected).abs().max() / largest).item()


@daily(3)
@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5", "olmo_hybrid"])
def test_gated_delta(kind: str) -> None:
    make = {"qwen3_next": qwen3_next, "qwen3_5": qwen3_5, "olmo_hybrid": olmo_hybrid}[kind]
    with in_float64():
        theirs, _ = make(13, (2, 4), (5, 7), 3)
        theirs.double().eval()
    randomise(theirs, seed=3)
    olmo: dict[str, Any] = (
        {"norm_eps": 1e-5, "negative": theirs.allow_neg_eigval} if (kind == "olmo_hybrid") else {}
    )
    part = GatedDeltaPart(
        conv_kernel=3, chunk_size=64, n_k_heads=2, n_v_heads=4, k_head_dim=5, v_head_dim=7, **olmo
    )
    ours = GatedDelta(part, 13, norms=RMS).double()
    ours.load_state_dict(renamed(kind, dict(theirs.state_dict()), 2))
    same(theirs, ours, 13)


def test_kimi_delta() -> None:
    with in_float64():
        theirs, _ = kimi_linear(13, 3, 5, 3)
        theirs.double().eval()
    randomise(theirs, seed=3)
    part = KimiDeltaPart(conv_kernel=3, chunk_size=64, n_heads=3, head_dim=5)
    ours = KimiDelta(part, 13, norms=RMS).double()
    ours.load_state_dict(theirs.state_dict())
    same(theirs, ours, 13)


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_lightning(layer: int) -> None:
    with in_float64():
        theirs, _ = minimax(13, 3, 6, 16, layer)
        theirs.double().eval()
    decays = {n: b.clone() for n, b in theirs.named_buffers()}
    randomise(theirs, seed=3)
    with torch.no_grad():
        for name, fixed in decays.items():
            theirs.get_buffer(name).copy_(fixed)
    part = LightningPart(chunk_size=16, n_heads=3, head_dim=6, norm_eps=1e-6)
    ours = Lightning(part, 13, norms=RMS, layer=layer, n_layers=5).double()
    left = ours.load_state_dict(named_as_ours(theirs.state_dict()), strict=False)
    assert (left.missing_keys, sorted(left.unexpected_keys)) == ([], sorted(decays))
    same(theirs, ours, 13, position_embeddings=None, attention_mask=None)


# ---- counts: formula, reference and transformers, of any sizes


def flops(module: nn.Module, x: Tensor, **given: Any) -> int:
    counter = FlopCounter()
    with torch.no_grad(), counter.watching(module):
        module(x, **given)
    return sum(counter.ran.values())


def measured(theirs: Any, ours: Any, cache: Any, sizes: tuple[int, int, int], **given: Any) -> Any:
    """Parameters, FLOPs of a prefill and of a token more; of transformers and of ours."""
    batch, length, width = sizes
    own, found = StateCache(), []
    with torch.device("meta"):
        for module, kept in ((theirs, {**given, **cache}), (ours, {"cache": own})):
            found.append([sum(p.numel() for p in module.parameters())])
            for n in (length, 1):
                found[-1].append(flops(module, torch.empty(batch, n, width), **kept))
    found[1] += [own.states[name].numel() for name in sorted(own.states)]
    return found


SIZE = st.integers(1, 5)
LENGTH = st.sampled_from([1, 2, 3, 63, 64, 65, 128, 131])


@one_day_in(6)
@settings(max_examples=8, deadline=None)
@given(SIZE, SIZE, st.integers(1, 3), SIZE, SIZE, SIZE, st.integers(1, 3), LENGTH)
def test_counts_of_gated_delta(
    d: int, groups: int, per_group: int, k: int, v: int, kernel: int, b: int, n: int
) -> None:
    from transformers import DynamicCache

    heads = (groups, groups * per_group)
    part = GatedDeltaPart(
        conv_kernel=kernel,
        chunk_size=64,
        n_k_heads=heads[0],
        n_v_heads=heads[1],
        k_head_dim=k,
        v_head_dim=v,
    )
    rule = {"n_linear_v_heads": heads[1], "linear_k_head_dim": k, "linear_v_head_dim": v}
    sizes = {**rule, "n_linear_k_heads": heads[0], "conv_kernel": kernel}
    weights = delta_formulas.gated_delta_weights(d, **sizes)
    terms = (*weights, *delta_formulas.gated_delta_products(**rule, linear_chunk_size=64))
    run = {"conv_kernel": kernel, "linear_chunk_size": 64}
    prefill = delta_formulas.gated_delta_run(b, n, **run)
    decode = delta_formulas.gated_delta_run(b, 1, **run, continued=True)
    expected = [
        params_of(weights),
        flops_of(terms, {TOKENS: b * n, **prefill}),
        flops_of(terms, {TOKENS: b, **decode}),
        *(b * state.size for state in delta_formulas.gated_delta_states(**sizes)),
    ]
    for make in (qwen3_next, qwen3_5, olmo_hybrid):
        with torch.device("meta"):
            theirs, config = make(d, heads, (k, v), kernel)
            ours = GatedDelta(part, d, norms=RMS)
        cache = DynamicCache(config=config)
        found = measured(theirs.eval(), ours, {"cache_params": cache}, (b, n, d))
        found[0] += kept(cache)
        assert found == [expected, expected]


def kept(cache: Any) -> list[int]:
    """Values of the convolution's state and of the recurrent one, which is in float32."""
    layer = cache.layers[0]
    assert layer.recurrent_states[0].dtype == torch.float32
    return [layer.conv_states[0].numel(), layer.recurrent_states[0].numel()]


@one_day_in(6)
@settings(max_examples=6, deadline=None)
@given(SIZE, SIZE, SIZE, SIZE, st.integers(1, 3), LENGTH)
def test_counts_of_kimi_delta(d: int, heads: int, width: int, kernel: int, b: int, n: int) -> None:
    from transformers import DynamicCache

    part = KimiDeltaPart(conv_kernel=kernel, chunk_size=64, n_heads=heads, head_dim=width)
    with torch.device("meta"):
        theirs, config = kimi_linear(d, heads, width, kernel)
        ours = KimiDelta(part, d, norms=RMS)
    sizes = {"n_linear_heads": heads, "linear_head_dim": width}
    weights = kimi_formulas.kimi_delta_weights(d, **sizes, conv_kernel=kernel)
    terms = (*weights, *kimi_formulas.kimi_delta_products(**sizes, linear_chunk_size=64))
    run = {"conv_kernel": kernel, "linear_chunk_size": 64}
    prefill = kimi_formulas.kimi_delta_run(b, n, **run)
    decode = kimi_formulas.kimi_delta_run(b, 1, **run, continued=True)
    expected = [
        params_of(weights),
        flops_of(terms, {TOKENS: b * n, **prefill}),
        flops_of(terms, {TOKENS: b, **decode}),
        *(b * s.size for s in kimi_formulas.kimi_delta_states(**sizes, conv_kernel=kernel)),
    ]
    cache = DynamicCache(config=config)
    found = measured(theirs.eval(), ours, {"cache_params": cache}, (b, n, d))
    found[0] += kept(cache)
    assert found == [expected, expected]


@settings(max_examples=8, deadline=None)
@given(SIZE, SIZE, SIZE, st.integers(1, 9), st.integers(1, 3), st.integers(1, 20))
def test_counts_of_lightning(d: int, heads: int, half: int, chunk: int, b: int, n: int) -> None:
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    part = LightningPart(chunk_size=chunk, n_heads=heads, head_dim=2 * half)
    with torch.device("meta"):
        theirs, _ = minimax(d, heads, 2 * half, chunk)
        ours = Lightning(part, d, norms=RMS, layer=1, n_layers=5)
    sizes = {"n_linear_heads": heads, "linear_head_dim": 2 * half}
    weights = lightning_formulas.lightning_weights(d, **sizes)
    terms = (*weights, *lightning_formulas.lightning_products(**sizes))
    prefill = lightning_formulas.lightning_run(b, n, linear_chunk_size=chunk)
    decode = lightning_formulas.lightning_run(b, 1, linear_chunk_size=chunk, continued=True)
    expected = [
        params_of(weights),
        flops_of(terms, {TOKENS: b * n, **prefill}),
        flops_of(terms, {TOKENS: b, **decode}),
        *(b * state.size for state in lightning_formulas.lightning_states(**sizes)),
    ]
    cache, given = MiniMaxCache(), {"position_embeddings": None, "attention_mask": None}
    found = measured(theirs.eval(), ours, {"past_key_values": cache}, (b, n, d), **given)
    found[0].append(cache.get_linear_cache(1).numel())
    assert found == [expected, expected]
