"""Models of the catalog that no spec expresses: transformers builds them from a config there."""

from __future__ import annotations

import pytest
from helpers.release import daily

import metacount
from metacount import Workload, catalog

WITHOUT = [entry for entry in catalog.entries() if entry.sizes is None]


@daily(2)
@pytest.mark.parametrize("entry", WITHOUT, ids=lambda entry: entry.id)
def test_the_count_is_the_published_one(entry: catalog.CatalogEntry) -> None:
    """To the last parameter, with the vision tower and its projector."""
    found = metacount.verify(entry.id, Workload(seq_len=8))
    (witness,) = found.witnesses
    assert witness.name == "transformers"
    assert witness.figures["params"] == entry.published.params
    # the text decoder, counted by formula, and what the entry says of the rest
    if entry.id == "llama4-scout":
        text = metacount.count("llama4-scout-text").params
        assert witness.figures["params"] - text == 871_932_416


def test_another_tower_is_another_count() -> None:
    config = dict(catalog.entry("llama4-scout").config or {})
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 33}
    (witness,) = metacount.verify(config, Workload(seq_len=8)).witnesses
    published = catalog.entry("llama4-scout").published.params
    # 4·d² and 2·d·m, a bias each, two LayerNorms
    layer = 4 * 1408**2 + 4 * 1408 + 2 * 1408 * 5632 + 1408 + 5632 + 4 * 1408
    assert published is not None and witness.figures["params"] == published - layer
