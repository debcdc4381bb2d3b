"""Configs of LongCat-Flash: the published keys, how many layers, what is said, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import one_line
from helpers.published import CONFIGS
from helpers.small_configs import SMALL

from metacount.catalog import entry
from metacount.cli import main
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.huggingface.config.keys import UnmappedKey
from metacount.huggingface.config.to_spec import Mapped, spec_from_config
from metacount.spec import FIELDS

# 28 layers of 256 zero experts: gate and up of 2048 × 6144, which nobody reads
UNREAD = 28 * 256 * 2 * 2048 * 6144


def small(**keys: Any) -> Mapped:
    return spec_from_config({"model_type": "longcat_flash", **SMALL["longcat_flash"], **keys})


def test_the_published_keys_are_the_model_of_the_catalog_and_rows_that_nobody_reads() -> None:
    ours, theirs = entry("longcat-flash").spec(), spec_from_config(CONFIGS["LongCat-Flash-Chat"])
    different = {name for name in FIELDS if getattr(ours, name) != getattr(theirs.spec, name)}
    assert different == {"zero_expert_rows"}
    assert model.params(theirs.spec) - model.params(ours) == UNREAD == 180_388_626_432
    assert model.active_params(theirs.spec) == model.active_params(ours)
    said = " ".join(theirs.notes)
    assert "transformers' class stores 180,388,626,432 parameters that no token reads" in said
    assert "prediction layers are not in the class" in said
    assert theirs.differs == theirs.refused == ()


def test_what_the_catalog_says_of_these_rows_is_computed() -> None:
    notes = entry("longcat-flash").notes
    assert notes is not None and f"{UNREAD:,} parameters" in notes


def test_the_rows_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    whole, without = (
        (main(["count", "type:longcat_flash", *changes, "--json"]), capsys.readouterr().out)
        for changes in ((), ("--set", "zero_expert_rows=false"))
    )
    assert (whole[0], without[0]) == (0, 0)
    assert '"params": 741053585408' in whole[1]
    assert '"params": 560664958976' in without[1]


def test_two_layers_for_each_of_theirs() -> None:
    assert small(num_layers=3).spec.n_layers == 6
    assert small(num_layers=3, num_hidden_layers=6).spec.n_layers == 6
    alone = {k: v for k, v in SMALL["longcat_flash"].items() if k != "num_layers"}
    found = spec_from_config({"model_type": "longcat_flash", **alone, "num_hidden_layers": 6})
    assert found.spec.n_layers == 6
    with pytest.raises(SpecError, match="num_hidden_layers"):
        spec_from_config({"model_type": "longcat_flash", **alone, "num_hidden_layers": 5})


def test_without_zero_experts() -> None:
    """transformers takes no null here, which is said; as others write it, there are none."""
    none, null = small(zero_expert_num=0), small(zero_expert_num=None)
    assert none.spec == null.spec and none.spec.n_zero_experts == 0
    assert none.refused == () and "zero_expert_num must be a whole number" in null.refused[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"num_hidden_layers": 8},
            "num_hidden_layers must be twice num_layers: 2 · 2 = 4: got 8; remove one of them",
        ),
        ({"num_hidden_layers": None}, "num_hidden_layers must be twice num_layers: 2 · 2 = 4: "),
        ({"zero_expert_num": -1}, "zero_expert_num must be at least 0: got -1; choose 0 to "),
        (
            {"zero_expert_type": "copy"},
            "zero_expert_type must be identity: a zero expert gives back what it gets: got 'copy'",
        ),
        ({"ffn_hidden_size": 72, "intermediate_size": 71}, "intermediate_size is the same as ffn"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match="; ") as caught:
        small(**keys)
    assert one_line(caught.value).startswith(message) and not isinstance(caught.value, UnmappedKey)


@pytest.mark.parametrize(
    "keys",
    [
        {"mla_scale_q_lora": False},
        {"norm_topk_prob": True},
        {"router_bias": True},
        {"attention_method": "MHA"},
        {"qk_head_dim": 15},
        {"moe_topk": 9},
        {"num_key_value_heads": 2},
        {"ngram_vocab_size_ratio": 78},
    ],
)
def test_what_is_left_to_transformers(keys: dict[str, Any]) -> None:
    with pytest.raises(UnmappedKey, match=next(iter(keys))):
        small(**keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"head_dim": 8}, "rotates head_dim = 8"), ({"moe_topk": 1}, "each token has one expert")],
)
def test_what_transformers_does_otherwise_is_said(keys: dict[str, Any], said: str) -> None:
    (different,) = small(**keys).differs
    assert said in different


def test_a_contradiction_ends_with_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "longcat_flash", "num_layers": 2, "num_hidden_layers": 8}')
    assert main(["count", str(file)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and "must be twice num_layers" in error
