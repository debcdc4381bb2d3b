"""Odd values at every key, for every mapped type: a count by formula is transformers' own.

A slice of what `benchmarks/mutate_configs.py` tries: every type, other keys with every seed.
"""

from __future__ import annotations

import os
import random

import pytest
from helpers.release import daily, one_in

torch = pytest.importorskip("torch")

from helpers.mutated_configs import answers, bases, figures_differ, mutants  # noqa: E402

from metacount.huggingface.config.record import family_of  # noqa: E402
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config  # noqa: E402

torch.set_num_threads(1)

SEED = int(os.environ.get("METACOUNT_SEED", "20"))
TRIED = 40  # of each type; the script tries about 1,500


@daily(12)
@pytest.mark.parametrize("model_type", one_in(10, mapped_types()))
def test_no_count_by_formula_is_wrong(model_type: str) -> None:
    whole = bases(model_type)
    drawn = random.Random(f"{SEED} {model_type}").sample(list(mutants(model_type, 20, SEED)), TRIED)
    equal = []
    for base, change in drawn:
        config = {**whole[base], **dict(change)}
        found = answers(config, ask_always=False)
        # the line that a failure shows: seed, base and change make it again
        said = f"seed {SEED}: {base} with {dict(change)}: {found}"
        assert not found.wrong, said
        assert found.verdict != "said to be refused, but built", said
        if found.verdict == "equal":
            equal.append(config)
    assert equal  # else nothing was compared
    assert figures_differ(equal[0]) == ()


def test_every_default_of_a_family_is_read() -> None:
    """A key that its family's function forgets would be passed over without a word."""
    from metacount.huggingface.config import to_spec as reading

    for model_type in mapped_types():
        family = family_of(model_type)
        assert family is not None
        read: set[str] = set()
        for name, base in bases(model_type).items():
            if name == "other names" and model_type in ("t5", "mt5", "switch_transformers"):
                continue  # left to transformers, see above
            _, end, _ = reading._choose_class(base, family)
            keys = reading.Keys(base, dict(family.defaults), dict(family.aliases), end)
            family.fields(keys)
            read |= keys.read
        # read beside the object that asks for a scaling
        assert set(family.defaults) - {"original_max_position_embeddings"} <= read, model_type


def test_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a family that takes one more bias than there is."""
    from metacount.formulas import model as formulas

    config = bases("llama")["bare"]
    assert not answers(config).wrong
    right = formulas.params
    monkeypatch.setattr(formulas, "params", lambda spec: right(spec) + 1)
    assert answers(config).wrong
    assert spec_from_config(config).refused == ()
