"""Routers against a loop over tokens: scores, choice, weights; and the balancing loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_parts import make_router
from torch import Tensor

from metacount.modules import Router, load_balancing_loss
from metacount.modules.moe import Routing
from metacount.spec import CHOICES

SCORINGS = CHOICES["router"]


def make(scoring: str, **options: Any) -> Router:
    sizes: dict[str, Any] = {"d_model": 7, "n_experts": 15, "top_k": 4}
    return randomised(make_router(**(sizes | {"scoring": scoring} | options)))  # type: ignore[no-any-return]


def tokens(n: int = 41) -> Tensor:
    return 2 * torch.randn(n, 7, dtype=torch.float64)


def test_groups_by_hand() -> None:
    # the router is the identity: logits are the token; 3 groups of 2 experts, one is open
    logits = torch.tensor([[5.0, 0.0, 4.0, 3.0, 4.5, 1.0]], dtype=torch.float64)
    options = {"d_model": 6, "n_experts": 6, "top_k": 2, "n_groups": 3, "top_groups": 1}
    chosen = {}
    for group_score in ("max", "top2_sum"):
        router = make("sigmoid", **options, group_score=group_score)
        router.proj.weight = torch.nn.Parameter(torch.eye(6, dtype=torch.float64))
        chosen[group_score] = router(logits).chosen_Nk.tolist()
    # max: 5 wins. top2_sum: sigmoid(4) + sigmoid(3) = 1.935, before 1.721 and 1.493
    assert chosen == {"max": [[0, 1]], "top2_sum": [[2, 3]]}


@pytest.mark.parametrize("scoring", SCORINGS)
def test_selection_bias_is_for_the_choice_only(scoring: str) -> None:
    router, x = make(scoring, selection_bias=True, top_k=15), tokens()
    bias = router.e_score_correction_bias
    assert isinstance(bias, Tensor)
    assert not isinstance(bias, torch.nn.Parameter)
    assert [name for name, _ in router.named_parameters()] == ["proj.weight"]

    def by_expert() -> Tensor:
        routing = router(x)
        return torch.zeros(41, 15).double().scatter(-1, routing.chosen_Nk, routing.weights_Nk)

    with_bias, order = by_expert(), router(x).chosen_Nk
    bias.zero_()
    # all experts are chosen: their weights are the same, their order is not
    assert_near(with_bias, by_expert())
    assert (order != router(x).chosen_Nk).any()
    router.top_k = 1
    bias[11] = 1000.0
    one = router(x)
    assert one.chosen_Nk.tolist() == [[11]] * 41
    expected = {"softmax": one.probs_NE[:, 11:12], "sigmoid": one.probs_NE[:, 11:12]}
    alone = torch.ones(41, 1, dtype=torch.float64)
    assert_near(one.weights_Nk, expected.get(scoring, alone))


def routed(probs: list[list[float]], chosen: list[list[int]]) -> Routing:
    ones = [[1.0] * len(row) for row in chosen]
    return Routing(
        probs_NE=torch.tensor(probs, dtype=torch.float64),
        chosen_Nk=torch.tensor(chosen),
        weights_Nk=torch.tensor(ones, dtype=torch.float64),
    )


def test_balancing_loss_by_hand() -> None:
    # 2 tokens, 2 experts, k = 1, both to expert 0: 2 · (1 · (0.75 + 0.5)/2 + 0 · …)
    loss = load_balancing_loss(routed([[0.75, 0.25], [0.5, 0.5]], [[0], [0]]))
    assert loss.item() == 1.25
