"""Blocks of some kinds of mixer and feed-forward, counted one by one."""

from __future__ import annotations

import sympy
from helpers.random_specs import specs
from hypothesis import given
from hypothesis import strategies as st

from metacount.catalog import entries, entry
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
