"""The formula of every row of a model's tree, by the row's path in the model.

A row is a tensor or a module; its formula is the sum of the tensors below its path, as the formulas
name them. Every form is of one copy: of one block, not of all. Sizes are ints or symbols.

>>> from metacount.catalog import entry
>>> rows = Rows(entry("mixtral-8x7b").spec())
>>> rows.form("decoder.layers.31.self_attn.q_proj"), rows.form("decoder.layers.0.mlp")
(16777216, 1409318912)
>>> rows.form("decoder.layers.0.mlp.experts.down_proj")
469762048
>>> Rows(entry("mixtral-8x7b").spec(), symbols=True).form("decoder.layers.0.mlp.gate")
E*d
"""

from __future__ import annotations

from metacount.formulas import altup, block, ends, model, stack, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Weight, params_of
from metacount.spec import ModelSpec, legend
from metacount.spec.field import altered

NORM = "layernorm"  # norms of the residual stream are named by where they stand: all end so
# What belongs to the whole model in the formulas and is made in each stack.
IN_A_STACK = ("embed_proj.", "embed_queries.")
# The name in its block of a mixer whose formulas name its tensors without it, by the part's word.
MIXERS = {
    "mamba": "mamba",
    "mamba2": "mamba",
    "gated_delta": "linear_attn",
    "kimi_delta": "linear_attn",
    "lightning": "linear_attn",
}
# The module inside of a mixer that holds some of its tensors.
OF_FORGET_GATE = ("f_a_proj", "f_b_proj", "dt_bias", "A_log")
HOLDERS = {"kimi_delta": dict.fromkeys(OF_FORGET_GATE, "forget_gate")}


def in_symbols(spec: ModelSpec) -> tuple[ModelSpec, dict[str, int]]:
    """Put a letter for each size that the spec's structure has;
    return the letters' numbers as well.
    """
    sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    sizes = {name: size for name, size in sizes.items() if size}
    if spec.moe_every == 1:
        sizes.pop("moe_every", None)
    letters = legend.sympy_symbols(sizes)
    numbers = {letters[name].name: size for name, size in sizes.items()}
    return spec.substituted(**letters), numbers


class Rows:
    """The forms of one model's rows, in numbers or, with `symbols`, in letters."""

    def __init__(self, spec: ModelSpec, *, symbols: bool = False) -> None:
        self._structure = spec  # which layer is of which kind: always concrete
        self.spec, self.numbers = in_symbols(spec) if symbols else (spec, {})
        self._blocks: dict[tuple[str, str, bool, bool, bool, bool], tuple[Weight, ...]] = {}

    def form(self, path: str) -> Dim:
        """Count the parameters of the module or tensor at `path`, of one copy.

        Raises `KeyError` for a path that a model of this spec does not have.
        """
        steps = tuple(path.split(".")) if path else ()
        if not steps:
            return model.params(self.spec)
        if steps[0] not in ("encoder", "decoder"):
            return below(self._around(), steps)
        if steps[1:2] == ("layers",) and len(steps) > 2:
            return self._in_block(steps[0], int(steps[2]), steps[3:])
        if steps[1:2] == ("shared_blocks",):
            return self._in_shared_block(steps[2:])
        cross = self._has_cross(steps[0])
        if not steps[1:]:
            weights = stack.stack_weights(self.spec, self._n_layers(steps[0]), cross=cross)
            return params_of((*weights, *self._in_stack()))
        if steps[1:] == ("layers",):
            return self._all_blocks(steps[0], cross)
        outside = (*ends.stack_end_weights(self.spec), *self._in_stack())
        if steps[1] == altup.OUTSIDE and len(steps) > 3:  # one of a list
            one = tuple(altered(weight, times=1) for weight in outside)
            return below(one, (*steps[1:3], *steps[4:]))
        return below(outside, steps[1:])

    def _n_layers(self, name: str) -> Dim:
        return getattr(self.spec, name).n_layers

    def _has_cross(self, name: str) -> bool:
        return self.spec.has_encoder and name == "decoder"

    def _all_blocks(self, name: str, cross: bool) -> Dim:
        whole = stack.stack_weights(self.spec, self._n_layers(name), cross=cross)
        shared = stack.shared_weights(self.spec, self._n_layers(name))
        return params_of(whole) - params_of((*ends.stack_end_weights(self.spec), *shared))

    def _in_shared_block(self, steps: tuple[str, ...]) -> Dim:
        """Count the values of one stored block,
        by its number and what is below it, or of all of them.
        """
        part = self.spec.last_stack.shared
        if part is None:
            raise KeyError("shared_blocks")
        one = sublayers.shared_block_weights(self.spec)
        if len(steps) > 1:
            return below(one, steps[1:])
        return params_of(one) * (1 if steps else part.n_blocks)

    def _in_block(self, name: str, index: int, steps: tuple[str, ...]) -> Dim:
        last = self._structure.last_stack
        cross = self._has_cross(name)
        second = last.feed_forward is not None and last.feed_forward.is_second(index)
        indexed = self.spec.has_index_layer(index)
        borrows = last.borrows(index)
        key = last.mixer_of(index), last.ffn_of(index), cross, indexed, borrows, second
        if key not in self._blocks:
            weights = block.block_weights(
                self.spec,
                mixer=key[0],
                ffn=key[1],
                cross=cross,
                indexed=indexed,
                borrows=borrows,
                second=second,
            )
            self._blocks[key] = self._named_as_modules(weights)
        weights = self._blocks[key]
        if not steps:
            first = index == 0 and not last.norms.first
            return params_of(weights) - int(first) * block.width_norm_params(self.spec)
        if steps[0].endswith(NORM):
            return below(block.width_norm_weights(self.spec, NORM), (NORM, *steps[1:]))
        return below(weights, steps)

    def _named_as_modules(self, weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
        """Name the tensors of a mixer by the module that holds them, and leave the others."""
        word: str = vars(type(self._structure.last_stack.recurrent))["word"]
        if word not in MIXERS:
            return weights
        holders = HOLDERS.get(word, {})
        named = {
            one.name: ".".join(filter(None, (MIXERS[word], holders.get(one.name), one.name)))
            for one in block.recurrent_weights(self.spec)
        }
        return tuple(altered(one, name=named.get(one.name, one.name)) for one in weights)

    def _in_stack(self) -> tuple[Weight, ...]:
        """Return the weights that the formulas count with the whole model
        and the module holds in its stack.
        """
        return tuple(one for one in ends.end_weights(self.spec) if one.name.startswith(IN_A_STACK))

    def _around(self) -> tuple[Weight, ...]:
        """Return the weights that a model has beside its stacks;
        a tied head has none of its own.
        """
        spec = self.spec
        tied: list[Weight] = []
        if spec.head is not None and spec.head.tied:
            tied = [Weight(role="head", name="lm_head.weight", shape=(0,))]
        whole = ends.end_weights(spec)
        return (*(one for one in whole if not one.name.startswith(IN_A_STACK)), *tied)


def below(weights: tuple[Weight, ...], steps: tuple[str, ...]) -> Dim:
    """Count the values of all tensors at or below a path; a `KeyError` where there is none."""
    path = ".".join(steps)
    found = [one for one in weights if one.name == path or one.name.startswith(f"{path}.")]
    if not found:  # the matrix alone, where a bias is told apart
        found = [one for one in weights if path == f"{one.name}.weight"]
    if not found:
        raise KeyError(path)
    return params_of(found)
