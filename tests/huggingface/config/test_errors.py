"""A config.json that has no spec, or is wrong: one line that names the key."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from helpers import one_line
from helpers.release import one_day_in
from hypothesis import given, settings
from hypothesis import strategies as st

import metacount
from metacount.errors import InputError, SpecError
from metacount.huggingface.config import limits
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.record import family_of
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config


def test_repetitions_are_not_written_out_first() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match="attention_types"):
            repeated = [[["global"] * 1000, 4000]] * 3
            spec_from_config({"model_type": "gpt_neo", "attention_types": repeated})
        assert tracemalloc.get_traced_memory()[1] < 2**21  # 12 million letters are more
    finally:
        tracemalloc.stop()


def test_what_is_no_config_at_all() -> None:
    with pytest.raises(SpecError, match="config"):
        spec_from_config([])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="model_type must be text"):
        spec_from_config({})
    with pytest.raises(SpecError, match="config"):
        spec_from_config({"model_type": "llama", 3: 4})  # type: ignore[dict-item]


# ---- strangers' files ----

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none()),
    st.sampled_from(["gelu", 2**31, 2**63, 10**400, [[["global"], 2]], {"rope_theta": 1}]),
)


@one_day_in(6)
@settings(max_examples=600)
@given(st.sampled_from(mapped_types()), st.data())
def test_mutated_configs_give_a_spec_or_one_clear_line(
    model_type: str, data: st.DataObject
) -> None:
    family = family_of(model_type)
    assert family is not None
    more = "architectures is_decoder layer_types rope_parameters rope_scaling attn_config"
    known = sorted({*family.defaults, *family.aliases, *family.ignored, *words(more)})
    keys = data.draw(st.dictionaries(st.sampled_from(known), VALUES, max_size=4))
    try:
        found = spec_from_config({"model_type": model_type, **keys})
    except SpecError as error:
        assert len(str(error).splitlines()) == 1
    else:
        json.dumps(found.spec.to_dict())


@pytest.mark.parametrize(
    ("most", "keys"),
    [  # a module is built for each of the first
        (4096, "num_hidden_layers n_layer encoder_layers num_labels num_codebooks layers"),
        (65_536, "num_experts num_local_experts n_routed_experts num_shared_experts"),
        (2**27, "max_position_embeddings n_positions original_max_position_embeddings"),
        (2**31, "hidden_size vocab_size head_dim num_attention_heads intermediate_size window"),
    ],
)
def test_a_size_at_its_limit_and_one_more(most: int, keys: str) -> None:
    for key in keys.split():
        assert limits.checked_config({"a": [{key: [most]}]}) == ({"a": [{key: [most]}]}, ())
        for data in ({key: most + 1}, {"text_config": {key: most + 1}}, {key: [1, most + 1]}):
            with pytest.raises(SpecError, match=key):
                limits.checked_config(data)
        with pytest.raises(SpecError, match=f"^{key} "):
            limits.checked_config({key: -most - 1})


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size", "head_dim"])
def test_what_every_model_has_one_of(key: str) -> None:
    assert limits.checked_config({key: 1}) == ({key: 1}, ())
    for wrong in (0, -1, float("inf"), float("nan"), {"__float__": "Infinity"}):
        with pytest.raises(SpecError, match=key):
            limits.checked_config({key: wrong})
    assert limits.checked_config({"eps": float("inf")}) == ({"eps": float("inf")}, ())


def test_a_structure_at_its_limits_and_one_more() -> None:
    def nested(n: int) -> object:
        return {"a": nested(n - 1)} if n else {}

    longest = ["x"] * 65_536, {f"k{i}": 1 for i in range(65_536)}, "x" * 4096, nested(11)
    for found in longest:
        assert limits.checked_config({"b": found}) == ({"b": found}, ())
    many = {"b": [[0] * 50_000] * 3 + [[0] * 49_994]}  # 199,994 + 4 lists + 1 + 1 = 200,000
    assert limits.checked_config(many) == (many, ())
    many["b"].append([])
    refused = [
        (["x"] * 65_537, "^b must have at most 65536 items: got '65537 items'"),
        ({f"k{i}": 1 for i in range(65_537)}, "^b must have at most 65536 items"),
        ("x" * 4097, "^b must be text of at most 4096 characters: got '4097 characters'"),
        (nested(12), "^a must be nested at most 12 deep: got 13"),
        (many["b"], "^config must hold at most 200000 values: got 200001"),
        ({1, 2}, "^b must be a value of JSON: got 'set'"),
    ]
    for wrong, message in refused:
        with pytest.raises(SpecError, match=message):
            limits.checked_config({"b": wrong})


def test_what_is_taken_out_of_a_config() -> None:
    auto = {"auto_map": {"AutoModel": "evil--code.Model"}, "quantization_config": {"bits": 4}}
    kept, notes = limits.checked_config({"text_config": {**auto, "hidden_size": 3}, **auto})
    assert kept == {"text_config": {"hidden_size": 3}}
    assert [note.partition(" is ignored")[0] for note in notes] == list(auto)
    assert limits.checked_config({"auto_map": None}) == ({}, ())
    for key in ("dtype", "attn_implementation", "use_kernels", "name_or_path", "__class__"):
        assert limits.checked_config({key: "x", "hidden_size": 3}) == ({"hidden_size": 3}, ())
    assert limits.checked_config({"gpt-j": {"no": 1}}) == ({"gpt-j": {"no": 1}}, ())
    with pytest.raises(SpecError, match="use_pretrained_backbone"):
        limits.checked_config({"a": {"use_pretrained_backbone": True}})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "zamba", "num_hidden_layers": -3}, "num_hidden_layers must be at least 1"),
        ({"model_type": "llama", "text_config": 3}, "text_config must be an object: got 3"),
    ],
)
def test_an_error_of_a_config_for_transformers_names_the_file(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"config.json: {said}") as caught:
        metacount.verify(str(file))
    one_line(caught.value)
