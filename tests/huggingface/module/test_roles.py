"""Roles by class, with each flag of a type's config turned: branches its default leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.release import chosen
from helpers.small_configs import OTHERS, SMALL, small_config
from torch import nn

from metacount.errors import SpecError
from metacount.huggingface.module.model import build_transformers
from metacount.measure.theirs import Roles, measure_any_params

ATTENTION = {
    *("self_attn", "attention", "attn", "self_attention", "crossattention", "cross_attn"),
    *("encoder_attn", "SelfAttention", "EncDecAttention"),
}
CONFIGS = {name: small_config(name) for name in SMALL} | OTHERS


def flagged(config: dict[str, Any]) -> Iterator[nn.Module]:
    """The module of a config, and of each in which a boolean is turned or a null is a number."""
    made, _ = build_transformers(config)
    yield made
    for part in ("", "text_config"):
        own = getattr(made.config, part, None) if part else made.config
        for name, value in {} if own is None else own.to_dict().items():
            if value is None or isinstance(value, bool):
                change = {name: 2 if value is None else not value}
                inner = {part: {**config.get(part, {}), **change}} if part else change
                try:
                    yield build_transformers({**config, **inner})[0]
                except SpecError:
                    continue


def misplaced(model: nn.Module) -> list[str]:
    """Modules of the text model whose role is not what their names say."""
    roles = Roles(model)
    assert measure_any_params(model, roles).params == sum(p.numel() for p in model.parameters())
    wrong = []
    for path, module in model.named_modules():
        role, above = roles.role[id(module)], set(path.split(".")[:-1])
        expected = {role}
        if role == "other!":  # a tower
            continue
        if isinstance(module, nn.Linear) and above & ATTENTION:
            expected = {"attention", "recurrent"}
        elif type(module).__name__.endswith("Norm") and list(module.parameters(recurse=False)):
            expected = {"norm", "head"}
        elif "experts" in path and any(p.dim() == 3 for p in module.parameters(recurse=False)):
            expected = {"moe"}
        if role not in expected:
            wrong.append(f"{path} ({type(module).__name__}) in {role}")
    return wrong


@pytest.mark.parametrize("name", chosen(CONFIGS, lambda i: list(CONFIGS)[i] in ("bert", "gemma4")))
def test_no_flag_puts_a_part_under_a_strange_role(name: str) -> None:
    assert [wrong for model in flagged(CONFIGS[name]) for wrong in misplaced(model)] == []


def test_a_layer_that_holds_experts_is_no_mixture() -> None:
    model, _ = build_transformers(OTHERS["gemma4"])
    found = measure_any_params(model)
    # 2 layers of 7 experts [48, 48], [48, 24]; a router [7, 48] that scales what goes in and out
    experts = 2 * 7 * (48 * 48 + 48 * 24)
    assert found.by_role["moe"] == experts + 2 * (7 * 48 + 48 + 7)
    # of 7 experts a token meets 3
    assert found.active_by_role is not None
    assert found.active_by_role["moe"] == found.by_role["moe"] - experts // 7 * 4
    assert found.by_role["ffn"] == 2 * 3 * 48 * 72
