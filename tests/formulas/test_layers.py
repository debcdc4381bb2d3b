"""Blocks of some kinds of mixer and feed-forward, counted one by one."""

from __future__ import annotations

import pytest
import sympy
from helpers.random_specs import specs
from hypothesis import given
from hypothesis import strategies as st

from metacount.catalog import entries, entry
from metacount.errors import SpecError
from metacount.formulas.layers import ANY_FFN, ANY_MIXER, layers_with
from metacount.spec import ModelSpec

MIXERS = st.sets(st.sampled_from(ANY_MIXER), min_size=1)
FFNS = st.sets(st.sampled_from(ANY_FFN), min_size=1)


def one_by_one(spec: ModelSpec, mixers: set[str], ffns: set[str]) -> int:
    last = spec.last_stack
    kinds = [(last.mixer_of(i), last.ffn_of(i)) for i in range(last.n_layers)]
    return sum(mixer in mixers and ffn in ffns for mixer, ffn in kinds)


@given(specs(), MIXERS, FFNS)
def test_any_model(spec: ModelSpec, mixers: set[str], ffns: set[str]) -> None:
    found = layers_with(spec, spec.n_layers, mixers="".join(mixers), ffns="".join(ffns))
    assert found == one_by_one(spec, mixers, ffns)


def test_models_of_the_catalog() -> None:
    """Each letter of feed-forwards, with any mixer and with each; every letter is met."""
    met = set()
    for one in entries():
        if one.sizes is None:
            continue
        spec = one.spec()
        for ffn in ANY_FFN:
            assert layers_with(spec, spec.n_layers, ffns=ffn) == one_by_one(
                spec, set(ANY_MIXER), {ffn}
            )
            for mixer in ANY_MIXER:
                n = layers_with(spec, spec.n_layers, mixers=mixer, ffns=ffn)
                assert n == one_by_one(spec, {mixer}, {ffn}), (one.id, mixer, ffn)
                met |= {mixer, ffn} if n else set()
    assert met == {*ANY_MIXER, *ANY_FFN}


def test_letters_where_every_mixer_is_asked_for() -> None:
    n = sympy.Symbol("N", integer=True, positive=True)
    spec = entry("deepseek-v3").spec()
    assert layers_with(spec, n, mixers="A", ffns="E") == n - 3
    assert layers_with(spec, n, mixers="A", ffns="F") == 3
    assert layers_with(spec, n, mixers="R", ffns="E") == 0


def test_letters_by_pattern_and_not_by_a_law_of_the_mixture() -> None:
    n = sympy.Symbol("N", integer=True, positive=True)
    plain, lettered = entry("olmo-hybrid-7b").spec(), entry("jamba-1.5-large").spec()
    assert layers_with(plain, n, mixers="A", ffns="F") == sympy.floor(n / 4)
    third = sympy.floor(n / 8 + sympy.Rational(3, 8))
    assert layers_with(lettered, n, mixers="A", ffns="F") == third
    with pytest.raises(SpecError):
        layers_with(entry("qwen3-next-80b-a3b").spec(), n, mixers="A", ffns="E")
