"""Our reference modules as what a form is read off: built and run with symbols for a spec's sizes.

Textbook formulas share no code with them, so that both can be compared for all sizes.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import nn

from metacount.errors import SpecError
from metacount.measure.ours import (
    ReferenceBook,
    ReferenceForwards,
    active_values,
    measure_forward,
    measure_params,
    owned,
    role_of,
)
from metacount.modules.attention import Visibility
from metacount.modules.build import build
from metacount.modules.model import Model
from metacount.process import made_in
from metacount.spec import ModelSpec, Workload
from metacount.tensors import DTYPES, tensor_bytes
from metacount.tracing.count import (
    OF_PARAMS,
    As,
    Built,
    Way,
    WithSymbols,
    apart,
    flops_by,
    products_of,
    with_kv_len,
)
from metacount.tracing.layers import Amounts, Place, places, places_by_name, stacks
from metacount.tracing.symbols import NotTraced, Sizes, kept_pairs, with_symbols

if TYPE_CHECKING:
    import sympy

    from metacount.measure.counter import FlopCounter
    from metacount.modules.cache import Cache
    from metacount.spec import Workload
    from metacount.tracing.count import As
    from metacount.tracing.symbols import Sizes


class SymbolicBook(ReferenceBook):
    """Visibilities of symbolic sizes stand in `seen`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.seen: dict[object, Visibility] = {}

    def hashable(self, value: object) -> object:
        """Make a value hashable, with expressions for symbols; sizes alone can be compared so."""
        if isinstance(value, torch.SymInt):
            return self.sizes.expr(value)
        if isinstance(value, tuple | list):
            return tuple(map(self.hashable, value))
        if isinstance(value, Visibility):
            key = self.hashable(tuple(vars(value).items()))
            self.seen[key] = value
            return key
        return value


class SymbolicCounter(WithSymbols):
    """Counts our own modules with symbols for sizes: they go through no tokens one by one."""

    deadline, may_run = math.inf, sys.maxsize
    book: SymbolicBook

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(SymbolicBook(sizes))
        self.sizes = sizes


class ReferenceRun:
    """One workload of B sequences of S tokens: prefill, one more token, and what is kept."""

    def __init__(
        self, model: Model, sizes: Sizes, seq_len: int, prefix_len: int, run_as: As
    ) -> None:
        self._sizes = sizes
        workload = SimpleNamespace(
            batch_size=1 if run_as.one_sequence else sizes.new("B", 5),
            seq_len=sizes.new("S", seq_len),
            encoder_len=sizes.new("S_e", 53) if model.spec.has_encoder else 0,
            prefix_len=prefix_len,
        )
        self._run = ReferenceForwards(model, workload)
        self._run.counter = lambda _: SymbolicCounter(sizes)
        with sizes.tracing(), with_symbols(Model):
            self.prefill, self.cache = self._run.prefill()

    @cached_property
    def decode(self) -> FlopCounter | None:
        """One token more; None for an encoder. It is run when it is asked for."""
        if self.cache is None:
            return None
        with self._sizes.tracing(), with_symbols(Model):
            return self._run.last_token()


# Fields that say which blocks are of which kind, not how large one is.
LAYERS = (
    "n_layers",
    "n_encoder_layers",
    "n_dense_layers",
    "moe_every",
    "moe_offset",
    "nope_every",
    "n_kv_shared_layers",
)
NUMBERS = ("n_altup_inputs", "altup_active")  # of modules in a list, and a place in it
HEADS = {"n_kv_heads": "n_heads"}


class ReferenceTrace:
    """Our module with symbols for its spec's sizes."""

    def __init__(self, sizes: Sizes, model: Model, prefix_len: int, run_as: As) -> None:
        self.sizes, self._model, self._prefix_len = sizes, model, prefix_len
        self._run_as = run_as
        self._places, self._by_name = places(model), places_by_name(model)
        self._runs: dict[int, ReferenceRun] = {}

    def amounts(
        self, quantity: str, seq_len: int, by_operator: bool
    ) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role (or operator) and layer, and notes; `seq_len` is behind S."""
        if quantity in OF_PARAMS:
            return self._params(quantity == "active_params"), ()
        run = self._runs.get(seq_len)
        if run is None:
            run = ReferenceRun(self._model, self.sizes, seq_len, self._prefix_len, self._run_as)
            self._runs[seq_len] = run
        if quantity == "matmul_flops":
            return self._flops(run.prefill, by_operator), ()
        if quantity == "causal_matmul_flops":
            return self._flops(run.prefill, by_operator, causal=True), (
                "pairs that a mask keeps: a polynomial, from masks that were laid out and counted "
                "(transformers' eager attention computes every pair and masks afterwards)",
            )
        if quantity == "kv_cache_bytes" and run.cache is not None:
            return self._cache(run.cache), ()
        if quantity == "decode_matmul_flops" and run.decode is not None:
            return with_kv_len(self._flops(run.decode, by_operator)), ()
        raise NotTraced(f"it does not generate, or keeps no state: there is no {quantity}")

    def _params(self, active: bool) -> Amounts:
        found: Amounts = defaultdict(lambda: 0)
        with self.sizes.tracing():
            for path, _, tensor in owned(self._model):
                values = active_values(path[-1], tensor) if active else tensor.numel()
                key = role_of(path) or "other", self._places.get(id(path[-1]))
                found[key] += self.sizes.expr(values)
        return dict(found)

    def _flops(self, counter: FlopCounter, by_operator: bool, *, causal: bool = False) -> Amounts:
        products = products_of(counter, self.sizes, self._by_name)
        if causal:
            assert isinstance(counter.book, SymbolicBook)
            masks = dict.fromkeys(charge.detail for charge, _, _ in products if charge.detail)
            kept = {sees: self._share_kept(counter.book.seen[sees]) for sees in masks}
            products = [(c, at, flops * kept.get(c.detail, 1)) for c, at, flops in products]
        return flops_by(products, by_operator=by_operator)

    def _share_kept(self, sees: Visibility) -> sympy.Expr:
        every = self.sizes.expr(sees.n_queries) * self.sizes.expr(sees.n_keys)
        return kept_pairs(sees, self.sizes) / every

    def _cache(self, cache: Cache) -> Amounts:
        found: Amounts = {}
        layers = self._model.last_stack.layers
        stack, _ = next((s, m) for s, m in stacks(self._model) if m is layers)
        for name, kept in (("self-attention", cache.layers), ("cross-attention", cache.cross)):
            for index, layer in enumerate(kept):
                place = Place(stack=stack, index=index)
                found[name, place] = self.sizes.expr(tensor_bytes(layer.tensors))
        return found


class ReferenceSource:
    """One spec, and the modules that it makes."""

    def __init__(
        self,
        spec: ModelSpec,
        dtype: str,
        prefix_len: int,
        run_as: As = As(),
    ) -> None:
        self._spec, self._dtype, self._prefix_len = spec, dtype, prefix_len
        self._run_as = run_as
        self.has_encoder = spec.has_encoder

    def described(self) -> str:
        """Say whose code this is, with versions."""
        return f"metacount's reference modules, torch {torch.__version__}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes that may be symbols: whole numbers from 2 that count no blocks."""
        return {
            name: value
            for name, value in self._spec.to_dict().items()
            if type(value) is int and value >= 2 and name not in (*LAYERS, *NUMBERS)
        }

    def layer_fields(self, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
        """Return the numbers that may say how many blocks there are of a kind."""
        found = {
            name: value
            for name in LAYERS
            if type(value := getattr(self._spec, name)) is int
            and value > (1 if name == "moe_every" else 0)  # every block: no pattern
        }
        return {**found, **{letter.name: number for letter, number in constants.items()}}

    def ways(self) -> Iterator[Way]:
        """Yield the ways to build with symbols, best first."""
        hints = apart(self.sizes(), HEADS)
        if hints and not self._run_as.tied:
            yield {"hints": hints}
        yield {"hints": {}}

    def traced(self, way: Way) -> ReferenceTrace:
        """Build the module with symbols, in one of the ways."""
        sizes = Sizes()
        hints = {**self.sizes(), **way["hints"]}
        made = {name: sizes.new(name, value) for name, value in hints.items()}
        in_dtype = made_in(DTYPES[self._dtype])
        with sizes.tracing(), with_symbols(Model), torch.device("meta"), in_dtype:
            model = Model(self._spec.substituted(**made)).eval()
        return ReferenceTrace(sizes, model, self._prefix_len, self._run_as)

    def built(self, change: dict[str, int]) -> Built | None:
        """Build the module with other numbers; None where no model has them."""
        try:
            spec = self._spec.replace(**change)
            numbers = {n: v for n, v in spec.to_dict().items() if type(v) is int}
            return Built(module=build(spec, dtype=self._dtype), numbers=numbers)
        except SpecError:
            return None

    def other(self, change: dict[str, int]) -> ReferenceSource | None:
        """Return the spec with other numbers for some sizes; None where no model has them."""
        try:
            spec = self._spec.replace(**change)
        except SpecError:
            return None
        return ReferenceSource(spec, self._dtype, self._prefix_len, self._run_as)

    def measured(
        self, module: nn.Module, quantity: str, workload: Workload, by_operator: bool
    ) -> dict[str, int] | None:
        """Measure a quantity of a module that was built with numbers, by role (or operator)."""
        assert isinstance(module, Model)
        if quantity in OF_PARAMS:
            found = measure_params(module)
            return found.by_role if quantity == "params" else found.active_by_role
        if quantity == "state_bytes":  # states are not traced here
            return None
        return measure_forward(module, workload).parts(quantity, by_operator=by_operator)
