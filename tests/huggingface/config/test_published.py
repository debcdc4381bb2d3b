"""Published config.json files against their totals, the catalog, and transformers' own modules."""

from __future__ import annotations

import pytest
from helpers.published import CONFIGS, TABLE
from helpers.release import daily, one_in

from metacount import catalog
from metacount.api import count
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.remote import REMOTE
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import build_transformers
from metacount.measure.theirs import measure_any_params
from metacount.spec import FIELDS
from metacount.textbook.proven import structure
from metacount.verify.for_all_sizes import of_type

IN_CATALOG = [name for name, line in TABLE.items() if line["total_from"] == "catalog"]
BY_TRANSFORMERS = [
    name
    for name, line in TABLE.items()
    if line["total_from"] in ("hub", "transformers") and line["config"]["model_type"] not in REMOTE
]


@pytest.mark.parametrize("name", TABLE)
def test_a_published_config_has_its_figures(name: str) -> None:
    line, counted = TABLE[name], count(CONFIGS[name])
    figures = ("params", "active_params", "kv_cache_bytes_per_token")
    assert {key: getattr(counted, key) for key in figures} == {key: line[key] for key in figures}
    if line["total_from"] == "hub":
        # parameters, biases of routers, and what prediction modules add: nothing is left
        parts = counted.checkpoint_parts(line["stored"]) if counted.prediction else {}
        buffers = line["stored"] - line["params"]
        assert "others" not in parts
        assert parts or buffers in (0, sum(counted.buffers.values()))


@daily(4)
@pytest.mark.parametrize("name", one_in(9, BY_TRANSFORMERS))
def test_transformers_makes_as_many(name: str) -> None:
    config = {k: v for k, v in CONFIGS[name].items() if k != "quantization_config"}
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"
    found = measure_any_params(build_transformers(config)[0])
    assert (found.text_params, found.text_active_params) == (
        TABLE[name]["params"],
        TABLE[name]["active_params"],
    )


# What no count shows: the catalog may know less of it, never something else.
QUIET = words(
    "norm_eps rope_theta rope_theta_windowed rotary_dim router position_offset rope_style "
    "group_score rope_scaling query_growth attention_scale"
)


@pytest.mark.parametrize("name", IN_CATALOG)
def test_structure_is_that_of_the_catalog(name: str) -> None:
    mine, spec = spec_from_config(CONFIGS[name]).spec, catalog.entry(name).spec()
    assert {f for f in FIELDS if getattr(mine, f) != getattr(spec, f)} <= QUIET


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "gpt-oss-20b"])
def test_scaled_rope_is_that_of_the_catalog(name: str) -> None:
    mapped = spec_from_config(CONFIGS[name])
    mine, spec = mapped.spec, catalog.entry(name).spec()
    assert mapped.differs == ()
    assert mine.rope_scaling == spec.rope_scaling is not None
    # DeepSeek-V2's paper has 0.0707 where the config has 0.1 · 0.707
    assert (mine.attention_scale or 0) == pytest.approx(spec.attention_scale or 0, rel=1e-12)


def test_what_was_not_obeyed_is_said() -> None:
    notes = "\n".join(spec_from_config(CONFIGS["deepseek-v3"]).notes)
    assert "DeepseekV3ForCausalLM (named by architectures)" in notes
    assert "quantization_config: parameters are counted unpacked" in notes
    assert "1 prediction layers are in the checkpoint" in notes
    ignored = spec_from_config(CONFIGS["gpt2"]).ignored
    assert {"n_ctx", "attn_pdrop", "task_specific_params", "summary_type"} <= set(ignored)
    assert not {"n_embd", "n_layer", "vocab_size"} & set(ignored)


# What the entry says otherwise than its type's class does; no count depends on the first.
OTHERWISE = {
    "mixtral-8x7b": {"router"},  # the paper chooses, then takes the softmax
    "longcat-flash": {"zero_expert_rows"},  # rows that no token reads
    "minimax-text-01": {"rotary_dim"},  # the class rotates whole heads
    "opt-175b": {"position_offset"},
    "galactica-120b": {"norm_bias", "position_offset"},
    "switch-xxl": {"activation", "gated"},
}


def test_a_catalog_model_is_of_the_structure_of_its_type() -> None:
    """A config of the type, with the entry's switches and the type's own sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    types = set()
    for model in catalog.entries():
        if model.model_type is None:
            assert model.type_config == {}
            continue
        types.add(model.model_type)
        if model.sizes is None:
            assert (model.config or {})["model_type"] == model.model_type
            continue
        config = {**of_type(model.model_type), **model.type_config}
        ours, theirs = model.spec(), spec_from_config(config).spec
        other = {
            name
            for name in ours.to_dict()
            if structure(theirs.substituted(**{name: getattr(ours, name)})) != structure(theirs)
        }
        assert other == OTHERWISE.get(model.id, set()), model.id
        assert (structure(ours) == structure(theirs)) is (not other)
    assert types <= CONFIG_MAPPING_NAMES.keys()
