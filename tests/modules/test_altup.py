"""What Gemma 3n puts around and beside its blocks, against loops over positions and copies."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from metacount.modules import Model
from metacount.modules.altup import AltUp, Copies, LayerInputs
from metacount.modules.build import build
from metacount.modules.ffn import top_values
from metacount.spec import ModelSpec
from metacount.spec import stack as parts
from metacount.spec.stack import Norms

SPEC: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 6,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "qk_norm": "head",
    "v_norm": True,
    "n_kv_shared_layers": 2,
    "window": 4,
    "window_pattern": "LLG",
    "d_ff": 17,
    "activation": "gelu_tanh",
    "gated": True,
    "norm": "rmsnorm",
    "norm_placement": "sandwich",
    "position": "rope",
}
EACH: dict[str, dict[str, Any]] = {
    "borrowed": {},
    "copies": {"n_altup_inputs": 3, "altup_active": 2},
    "laurel": {"laurel_rank": 5},
    "embeddings": {"d_per_layer": 11, "vocab_size_per_layer": 50},
    "sparse": {"activation_sparsity": 0.7, "sparsity_pattern": "TF"},
    "widths": {"d_ff_second": 19, "d_ff_pattern": "MW"},
}
EACH["all"] = {key: value for one in EACH.values() for key, value in one.items()}
NORMS = Norms(kind="rmsnorm", eps=1e-6)


def model(**changes: Any) -> Model:
    made = build(ModelSpec.from_dict({**SPEC, **changes}), device="cpu", dtype="fp64", seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():  # norms begin as ones
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def tokens(length: int) -> Tensor:
    return torch.randint(0, 101, (2, length), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", EACH)
@torch.no_grad()
def test_one_token_after_the_other_gives_the_logits_of_all_at_once(name: str) -> None:
    made, ids = model(**EACH[name]), tokens(11)
    whole, cache = made(ids).logits_BSV, made.new_cache()
    cut = (3, 1, 1, 4, 1, 1)
    steps = [made(part, cache=cache).logits_BSV for part in ids.split(cut, dim=1)]
    assert whole is not None
    assert (torch.cat([s for s in steps if s is not None], dim=1) - whole).abs().max() < 1e-10
    assert [len(layer.tensors) for layer in cache.layers] == [2, 2, 2, 2, 0, 0]


@torch.no_grad()
def test_a_layer_borrows_of_the_last_one_that_sees_as_far() -> None:
    """Four layers make keys and values, LLGL; the last two, L and G, read those of 3 and of 2."""
    ids = tokens(9)
    before = model()(ids).logits_BSV
    assert before is not None
    moved = {}
    for index in range(4):
        made = model()
        weights = {name.removeprefix("decoder.layers."): p for name, p in made.named_parameters()}
        # what only the borrowing layers would notice: cut their own attention off
        for other in range(4):
            weights[f"{other}.self_attn.o_proj.weight"].zero_()
        plain = made(ids).logits_BSV
        weights[f"{index}.self_attn.v_proj.weight"].mul_(-1)
        turned = made(ids).logits_BSV
        assert plain is not None and turned is not None
        moved[index] = bool((plain - turned).abs().max() > 1e-6)
    assert moved == {0: False, 1: False, 2: True, 3: True}


@torch.no_grad()
def test_altup_copy_by_copy() -> None:
    torch.manual_seed(1)
    part = parts.AltUp(n_inputs=3, active=1)
    altup = AltUp(part, 5, norms=NORMS, scaled=False).double()
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    y = torch.randn(2, 4, 5, dtype=torch.float64)
    predicted, (batch, length) = altup.predict(x), (2, 4)
    corrected = altup.correct(predicted, y)
    router, predict = altup.modality_router.weight, altup.prediction_coefs.weight
    for b in range(batch):
        for s in range(length):

            def routed(one: Tensor) -> Tensor:
                root = math.sqrt(float(one.square().mean()) + 1e-6)
                return torch.tanh(router @ (one / root / 5))

            table = (predict @ routed(x[1, b, s])).reshape(3, 3)  # row i: what copy i is made of
            gains = altup.correction_coefs.weight @ routed(y[b, s])
            for i in range(3):
                expected = x[i, b, s] + sum(table[i, j] * x[j, b, s] for j in range(3))
                torch.testing.assert_close(predicted[i, b, s], expected)
                error = y[b, s] - predicted[1, b, s]
                expected = predicted[i, b, s] + (1 + gains[i]) * error
                torch.testing.assert_close(corrected[i, b, s], expected)


@torch.no_grad()
def test_copies_have_the_mean_square_of_the_first() -> None:
    torch.manual_seed(1)
    copies = Copies(parts.AltUp(n_inputs=4), 5).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    spread, weights = copies.spread(x), dict(copies.named_parameters())
    for i in range(1, 4):
        raw = x @ weights[f"projections.{i - 1}.weight"].T
        scale = (x.square().mean(-1) / raw.square().mean(-1)).sqrt()
        torch.testing.assert_close(spread[i], raw * scale.unsqueeze(-1))
    gathered = copies.gathered(spread)
    torch.testing.assert_close(gathered[0], x)
    squares = gathered.square().mean(-1)
    torch.testing.assert_close(squares, squares[:1].expand_as(squares))


@torch.no_grad()
def test_each_layers_embedding_is_of_the_token_and_of_what_is_read() -> None:
    torch.manual_seed(1)
    spec = ModelSpec.from_dict({**SPEC, **EACH["embeddings"]})
    part = spec.last_stack.layer_inputs
    assert part is not None
    inputs = LayerInputs(spec, part, 6).double()
    ids, x = torch.tensor([[3, 49, 50, -1]]), torch.randn(1, 4, 13, dtype=torch.float64)
    found, table = inputs(ids, x), inputs.embed_tokens.weight
    for s, row in enumerate((3, 49, 0, 0)):  # of 50 rows: a token beyond them reads row 0
        for layer in range(6):
            cut = slice(layer * 11, (layer + 1) * 11)
            made = inputs.model_projection.weight[cut] @ x[0, s] / math.sqrt(13)
            made = made / math.sqrt(float(made.square().mean()) + spec.norm_eps)
            expected = (table[row, cut] * math.sqrt(11) + made) / math.sqrt(2)
            torch.testing.assert_close(found[0, s, layer], expected)


def test_top_values_are_those_above_a_normal_quantile() -> None:
    torch.manual_seed(1)
    x = 3 + 2 * torch.randn(4, 20_001, dtype=torch.float64)
    kept = top_values(x, 0.9)
    for row, there in zip(x, kept, strict=True):
        mean, spread = float(row.mean()), float(row.std(unbiased=False))
        cut = mean + spread * NormalDist().inv_cdf(0.9)
        torch.testing.assert_close(there, (row - cut).clamp(min=0))
        assert abs(int((there > 0).sum()) / 20_001 - 0.1) < 0.01
