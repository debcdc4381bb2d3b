"""What a config says of multi-token-prediction modules, in the words of each family."""

from __future__ import annotations

from typing import Any

import pytest

from metacount.errors import SpecError
from metacount.huggingface.config.keys import UnmappedKey
from metacount.huggingface.config.to_spec import spec_from_config

READ: list[tuple[dict[str, Any], int | None]] = [
    ({"model_type": "deepseek_v3"}, 1),  # the default of its class
    ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}, None),
    ({"model_type": "deepseek_v3", "num_nextn_predict_layers": None}, None),
    ({"model_type": "deepseek_v3", "num_mtp_layers": 3}, 3),
    ({"model_type": "deepseek_v3", "architectures": ["DeepseekV3Model"]}, None),
    ({"model_type": "glm4_moe", "num_nextn_predict_layers": 2}, 2),
    ({"model_type": "deepseek_v32"}, None),
    ({"model_type": "deepseek_v32", "num_nextn_predict_layers": 1}, 1),
    ({"model_type": "qwen3_next"}, None),
    ({"model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 1}, 1),
    ({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
      "mtp_use_dedicated_embeddings": False}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("config", "n_modules"), READ)
def test_the_number_of_modules(config: dict[str, Any], n_modules: int | None) -> None:
    mapped = spec_from_config(config)
    assert mapped.spec.n_mtp_layers == n_modules
    said = [note for note in mapped.notes if "counted apart, as mtp_params" in note]
    assert len(said) == (0 if n_modules is None else 1)


def test_what_is_no_number_of_modules_is_refused() -> None:
    for value in (-1, "1", 1.0, True, 10**6):
        with pytest.raises(SpecError, match=r"^num_nextn_predict_layers must be .*: got "):
            spec_from_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": value})
    with pytest.raises(UnmappedKey, match="mtp_use_dedicated_embeddings"):
        spec_from_config({"model_type": "qwen3_5_text", "mtp_use_dedicated_embeddings": True})
