"""What forms are read off, built and run with symbols for sizes: our modules, transformers' code.

Parameters, FLOPs and caches are counted layer by layer, as expressions. Textbook formulas share no
code with our modules, so that both can be compared for all sizes.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict

import sympy
import torch
from torch import Tensor, nn

from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.huggingface.config.limits import EXPERT_COUNTS, LAYER_COUNTS
from metacount.huggingface.module.model import (
    build_transformers,
    built_quietly,
    chosen_class,
    config_class,
    default_config,
    version,
)
from metacount.measure.counter import IDLE, Book, Charge, FlopCounter, MeasuredRun
from metacount.measure.operators import flops_of
from metacount.measure.ours import (
    ReferenceBook,
    ReferenceForwards,
    active_values,
    measure_forward,
    measure_params,
    owned,
    role_of,
)
from metacount.measure.theirs import (
    Ordinary,
    Roles,
    Runner,
    as_it_runs,
    distinct_tensors,
    kind_of,
    measure_any_forward,
    measure_any_params,
    measure_cache,
    role_name,
    routing,
)
from metacount.measure.torch_private import is_fake, unwatched
from metacount.modules.attention import Visibility
from metacount.modules.build import build
from metacount.modules.model import Model
from metacount.spec import ModelSpec, Workload
from metacount.spec.stack import OF_LAYERS, OF_LISTS
from metacount.tensors import DTYPES, FunctionMode, made_in, tensor_bytes
from metacount.tracing.layers import Amounts, Place, places, places_by_name, stack_of_caches, stacks
from metacount.tracing.symbols import (
    NeedsLength,
    NotTraced,
    Sizes,
    kept_pairs,
    symbol,
    with_symbols,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sympy
    from transformers.configuration_utils import PreTrainedConfig

    from metacount.files import Json
    from metacount.huggingface.module.model import ClassChoice
    from metacount.measure.counter import FlopCounter
    from metacount.measure.torch_private import OpOverload
    from metacount.modules.cache import Cache
    from metacount.spec import Workload
    from metacount.tracing.symbols import Sizes


aten = torch.ops.aten

MAX_OPERATORS = 2500  # of a forward in a minute; one layer of each kind runs, of some hundred
CHECKED = 200  # operators after which it is seen whether B and S are still letters


class TooSlow(NotTraced):
    """The code takes too long with symbols for sizes."""


def traced_params(model: nn.Module, roles: Roles, sizes: Sizes) -> tuple[Amounts, Amounts | None]:
    """Count distinct parameters, and those that one token uses; None where routing is unknown."""
    where = places(model)
    every: Amounts = defaultdict(lambda: 0)
    active: Amounts = defaultdict(lambda: 0)
    with sizes.tracing():
        routed, unknown = routing(model)
        for _, owner, tensor in distinct_tensors(model, roles):
            key = role_name(roles.role[id(owner)]), where.get(id(owner))
            values = sizes.expr(tensor.numel())
            every[key] += values
            chosen, n_experts = routed.get(id(tensor), (1, 1))
            active[key] += values / sizes.expr(n_experts) * sizes.expr(chosen)
    return dict(every), None if unknown else dict(active)


class OneExpert(Ordinary):
    """All tokens choose one expert of a list: what experts do is linear in the tokens they get."""

    def hit(self, n_experts: int | torch.SymInt) -> int:
        """Return one, however many experts there are."""
        return 1


class WithSymbols(FlopCounter):
    """Counts with symbols for sizes, and not for ever."""

    sizes: Sizes
    deadline: float
    may_run = MAX_OPERATORS  # so many operators more

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator, unless it is too late."""
        if func.namespace == "prim":
            return func(*args, **kwargs)
        self.may_run -= 1
        if self.may_run % CHECKED == 0:
            check_free(self.sizes)  # a loop over tokens would go on for long
        if self.may_run < 0 or time.process_time() > self.deadline:
            raise TooSlow("the code takes too long with symbols for sizes")
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if tensors and not any(t.is_meta or is_fake(t) for t in tensors):
            with unwatched():  # numbers of experts: the code makes names of them
                return func(*args, **kwargs)
        made = SHAPED.get(func)
        if made is None:
            return super().run_operator(func, args, kwargs)
        out = made(*args)
        if flops := flops_of(func, args, out):
            self.charge(func.overloadpacket, args, flops)
        return out


class Counted(FunctionMode):
    """Rows are counted by expert where their number is a symbol, of which torch makes a number."""

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Give an empty tensor of as many counts, or let torch."""
        bins, x = kwargs.get("bins"), args[0] if args else None
        if func is torch.histc and isinstance(bins, torch.SymInt) and isinstance(x, Tensor):
            return x.new_empty(bins)
        return func(*args, **kwargs)


def _padded(x: Tensor, pads: Sequence[int], *_: object) -> Tensor:
    """Make an empty tensor padded in front of and behind each dimension, the last one first."""
    shape = list(x.shape)
    for i in range(len(pads) // 2):
        shape[-1 - i] = shape[-1 - i] + pads[2 * i] + pads[2 * i + 1]
    return x.new_empty(shape)


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Make an empty solution of a triangular system: [.., n, n], [.., n, k] -> [.., n, k]."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return b.new_empty(*batch, *b.shape[-2:])


# Operators whose shapes torch works out with numbers alone.
SHAPED: dict[OpOverload, Callable[..., Tensor]] = {
    aten.polar.default: lambda x, _: torch.empty_like(x, dtype=x.dtype.to_complex()),
    aten.baddbmm.default: lambda c, a, b, **_: torch.bmm(a, b) + c,
    aten.constant_pad_nd.default: _padded,
    aten.linalg_solve_triangular.default: _solved,
}


def check_free(sizes: Sizes) -> None:
    """Check that the code left B, S and S_e symbols: else the form is of one number alone."""
    for letter, number in sizes.constants.items():
        if letter.name in ("B", "S", "S_e"):
            kind = NeedsLength if letter.name == "S" else NotTraced
            raise kind(f"the code needs the number {letter} = {number}")


# One product: its charge, its layer, its FLOPs as an expression.
Products = list[tuple[Charge, Place | None, sympy.Expr]]


@frozen
class TracedRun:
    """What a forward showed: the products of prefill and of one token, and what is cached."""

    prefill: Products
    decode: Products | None
    cache: Amounts | None
    state: Amounts | None
    assumed: tuple[str, ...]


def traced_forward(
    model: nn.Module, roles: Roles, sizes: Sizes, seq_len: int, run_as: As, *, decode: bool
) -> TracedRun:
    """Run the model over B sequences of S tokens, with `decode` then over one more token each.

    The numbers are the hints behind B, S and S_e. Raises whatever the code raises, and `NotTraced`
    after `MAX_OPERATORS` or `run_as.seconds` of this process: code that goes through tokens one by
    one takes for ever with symbols.
    """
    workload = SimpleNamespace(
        batch_size=1 if run_as.one_sequence else sizes.new("B", 5),
        seq_len=sizes.new("S", seq_len),
        encoder_len=sizes.new("S_e", 53),
    )

    def run() -> TracedRun:
        deadline, where = time.process_time() + run_as.seconds, places_by_name(model)

        def counter(book: Book) -> FlopCounter:
            made = WithSymbols(book)
            made.deadline, made.sizes = deadline, sizes
            made.may_run = int(MAX_OPERATORS * run_as.seconds / 60)
            return made

        runner = Runner(model, workload, roles)
        runner.counter, runner.ordinary = counter, OneExpert
        prefill, cache = runner.prefill()
        assumed = tuple(sorted(runner.assumed))
        last = runner.last_token() if decode and cache is not None else None
        amounts = (None, None) if cache is None else _cached(cache, model, sizes)
        return TracedRun(
            prefill=products_of(prefill, sizes, where),
            decode=None if last is None else products_of(last, sizes, where),
            cache=amounts[0],
            state=amounts[1],
            assumed=assumed,
        )

    with sizes.tracing(), Counted():
        return as_it_runs(model, run)[0]


def products_of(counter: FlopCounter, sizes: Sizes, where: dict[str, Place]) -> Products:
    """List what a counter was charged with, each in letters and in its layer."""
    return [
        (charge, where.get(charge.module), sizes.expr(flops)) for charge, flops in counter.charges()
    ]


def flops_of_roles(products: Products, *, idle: bool = False) -> Amounts:
    """Sum each token's chosen experts alone, without rotary tables, by role; or what
    the code runs besides (`idle`), on experts that a token did not choose.
    """
    amounts: Amounts = defaultdict(lambda: 0)
    for charge, place, flops in products:
        role, is_idle = charge.role or "other", charge.operator == IDLE
        if idle:
            if is_idle:
                amounts[role, place] += flops
        elif is_idle or charge.counted:
            amounts[role, place] += -flops if is_idle else flops
    return dict(amounts)


def with_kv_len(amounts: Amounts) -> Amounts:
    """Rewrite one token's amounts in T: it attends to all positions, itself included."""
    return {key: expr.subs(symbol("S"), symbol("T")) for key, expr in amounts.items()}


def _cached(cache: object, model: nn.Module, sizes: Sizes) -> tuple[Amounts, Amounts]:
    """Measure the bytes of keys and values, those of an encoder apart, and of recurrent state."""
    amounts: Amounts = defaultdict(lambda: 0)
    state: Amounts = defaultdict(lambda: 0)
    parts = {"self-attention": cache}
    if hasattr(cache, "self_attention_cache") and hasattr(cache, "cross_attention_cache"):
        parts = {
            "self-attention": cache.self_attention_cache,
            "cross-attention": cache.cross_attention_cache,
        }
    for name, part in parts.items():
        layers = getattr(part, "layers", None)
        stack = stack_of_caches(len(layers), model) if isinstance(layers, list) else None
        if not isinstance(layers, list) or stack is None:
            measured = measure_cache(part)
            amounts[name, None] += sizes.expr(measured.kv_bytes)
            state["state", None] += sizes.expr(measured.state_bytes)
            continue
        for index, layer in enumerate(layers):
            at = index * stack.length // max(len(layers), stack.length)
            measured, place = measure_cache([layer]), Place(stack=stack, index=at)
            amounts[name, place] += sizes.expr(measured.kv_bytes)
            state["state", place] += sizes.expr(measured.state_bytes)
    return dict(amounts), dict(state)


QUANTITIES = (
    "params",
    "active_params",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes",
    "state_bytes",
)
# Of a forward or of one token: what code runs on experts that a token did not choose.
IDLE_OF = {"matmul_flops": "idle_matmul_flops", "decode_matmul_flops": "idle_decode_matmul_flops"}
OF_PARAMS = frozenset(["params", "active_params"])
IN_BYTES = frozenset(["kv_cache_bytes", "state_bytes"])


@frozen
class Built:
    """A module, and the whole numbers of its config: more than the asked ones may be others."""

    module: nn.Module
    numbers: dict[str, int]


@frozen
class As:
    """How a model is run with symbols: one sequence as the number 1 (of it torch asks other things
    than of B), as many key/value heads as heads where the model has it so.

    `strict`: an error of ours ends it; else it is one more reason why something is not traced.
    `seconds` of this process a forward with symbols may take.
    """

    one_sequence: bool = False
    tied: bool = False
    strict: bool = False
    seconds: float = 60.0


class Way(TypedDict, total=False):
    """One way to build a model with symbols."""

    hints: dict[str, int]  # other numbers behind the symbols
    skipped: frozenset[str]  # fields that stay numbers


def apart(sizes: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    """Choose other hints where there are as many key/value heads as heads:
    that form would be special.

    `names` gives, for a name of the number of key/value heads, that of the number of heads.
    """
    differing: dict[str, int] = {}
    if any(name.endswith("kv_lora_rank") for name in sizes):
        return differing  # latent attention knows one number of heads
    for name, value in sizes.items():
        last = name.rpartition(".")[2]
        if last in names and value % 2 == 0 and value > 3:
            heads = name.removesuffix(last) + names[last]
            if sizes.get(heads) == value:
                differing[name] = value // 2
    return differing


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


OUR_HEADS = {"n_kv_heads": "n_heads"}


class ReferenceTrace:
    """Our module with symbols for its spec's sizes."""

    def __init__(self, sizes: Sizes, model: Model, prefix_len: int, run_as: As) -> None:
        self.sizes, self._model, self._prefix_len = sizes, model, prefix_len
        self._run_as = run_as
        self._places, self._by_name = places(model), places_by_name(model)
        self._runs: dict[int, ReferenceRun] = {}

    def amounts(self, quantity: str, seq_len: int) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role and layer, and notes; `seq_len` is behind S."""
        if quantity in OF_PARAMS:
            return self._params(quantity == "active_params"), ()
        run = self._runs.get(seq_len)
        if run is None:
            run = ReferenceRun(self._model, self.sizes, seq_len, self._prefix_len, self._run_as)
            self._runs[seq_len] = run
        if quantity == "matmul_flops":
            return self._flops(run.prefill), ()
        if quantity == "causal_matmul_flops":
            return self._flops(run.prefill, causal=True), (
                "pairs that a mask keeps: a polynomial, from masks that were laid out and counted "
                "(transformers' eager attention computes every pair and masks afterwards)",
            )
        if quantity == "kv_cache_bytes" and run.cache is not None:
            return self._cache(run.cache), ()
        if quantity == "decode_matmul_flops" and run.decode is not None:
            return with_kv_len(self._flops(run.decode)), ()
        raise NotTraced(f"it does not generate, or keeps no state: there is no {quantity}")

    def _params(self, active: bool) -> Amounts:
        amounts: Amounts = defaultdict(lambda: 0)
        with self.sizes.tracing():
            for path, _, tensor in owned(self._model):
                values = active_values(path[-1], tensor) if active else tensor.numel()
                key = role_of(path) or "other", self._places.get(id(path[-1]))
                amounts[key] += self.sizes.expr(values)
        return dict(amounts)

    def _flops(self, counter: FlopCounter, *, causal: bool = False) -> Amounts:
        products = products_of(counter, self.sizes, self._by_name)
        if causal:
            assert isinstance(counter.book, SymbolicBook)
            masks = dict.fromkeys(charge.detail for charge, _, _ in products if charge.detail)
            shares = {sees: self._share_kept(counter.book.seen[sees]) for sees in masks}
            products = [(c, at, flops * shares.get(c.detail, 1)) for c, at, flops in products]
        return flops_of_roles(products)

    def _share_kept(self, sees: Visibility) -> sympy.Expr:
        every = self.sizes.expr(sees.n_queries) * self.sizes.expr(sees.n_keys)
        return kept_pairs(sees, self.sizes) / every

    def _cache(self, cache: Cache) -> Amounts:
        amounts: Amounts = {}
        layers = self._model.last_stack.layers
        stack, _ = next((s, m) for s, m in stacks(self._model) if m is layers)
        for name, caches in (("self-attention", cache.layers), ("cross-attention", cache.cross)):
            for index, layer in enumerate(caches):
                place = Place(stack=stack, index=index)
                amounts[name, place] = self.sizes.expr(tensor_bytes(layer.tensors))
        return amounts


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
            if type(value) is int and value >= 2 and name not in (*OF_LAYERS, *OF_LISTS)
        }

    def layer_fields(self, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
        """Return the numbers that may say how many blocks there are of a kind."""
        fields = {
            name: value
            for name in OF_LAYERS
            if type(value := getattr(self._spec, name)) is int
            and value > (1 if name == "moe_every" else 0)  # every block: no pattern
        }
        return {**fields, **{letter.name: number for letter, number in constants.items()}}

    def ways(self) -> Iterator[Way]:
        """Yield the ways to build with symbols, best first."""
        hints = apart(self.sizes(), OUR_HEADS)
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
        self, module: nn.Module, quantity: str, workload: Workload
    ) -> dict[str, int] | None:
        """Measure a quantity of a module that was built with numbers, by role."""
        assert isinstance(module, Model)
        if quantity in OF_PARAMS:
            measured = measure_params(module)
            return measured.by_role if quantity == "params" else measured.active_by_role
        if quantity == "state_bytes":  # states are not traced here
            return None
        return measure_forward(module, workload).parts(quantity)


# Whole numbers of a config that are no sizes: names of tokens, seeds, choices.
NO_SIZES = frozenset((
    "chunk_size_feed_forward", "num_return_sequences", "num_beams", "num_beam_groups", "top_k",
    "pretraining_tp", "seed", "max_length", "min_length", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
))  # fmt: skip

# Those that say which layers are of another kind.
LAYER_PATTERNS = frozenset((
    "first_k_dense_replace", "decoder_sparse_step", "encoder_sparse_step", "moe_layer_interval",
    "moe_layer_freq", "interleave_moe_layer_step", "expert_layer_period", "expert_layer_offset",
    "attn_layer_period", "attn_layer_offset", "full_attention_interval", "layer_group_size",
    "global_attn_every_n_layers", "no_rope_layer_interval", "cross_layer_interval",
    "cross_attention_frequency", "sliding_window_pattern", "num_kv_shared_layers",
))  # fmt: skip

# With a period of 1 all layers are of one kind: there is no pattern.
_EVERY = {name: 1 for name in LAYER_PATTERNS if name != "first_k_dense_replace"}


def size_fields(config: PreTrainedConfig, skipped: frozenset[str] = frozenset()) -> dict[str, int]:
    """Return the fields of a config that may be symbols: whole numbers from 2, none of layers."""
    return {
        name: value
        for name, value in vars(config).items()
        if type(value) is int
        and value >= 2
        and not name.startswith("_")
        and not name.endswith("_id")
        and name not in NO_SIZES
        and name not in LAYER_COUNTS
        and name not in LAYER_PATTERNS
        and name not in skipped
    }


def traced_module(
    source: str | Json,
    sizes: Sizes,
    *,
    hints: dict[str, int] | None = None,
    skipped: frozenset[str] = frozenset(),
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[nn.Module, PreTrainedConfig, ClassChoice]:
    """Build transformers' module with its config's sizes as symbols;
    return it, the config object, the choice.

    `hints` puts other numbers behind the symbols; `skipped` names fields that stay numbers.
    """
    chosen, config, choice = chosen_class(source)
    for owner, prefix in configs_of(config):
        for name, value in size_fields(owner, skipped).items():
            full = prefix + name
            # past the checks of the config's class, which want a Python int
            vars(owner)[name] = sizes.new(full, (hints or {}).get(full, value))
    with sizes.tracing(), with_symbols(chosen):
        module = built_quietly(chosen, config, dtype)
    return module, config, choice


def configs_of(config: PreTrainedConfig) -> list[tuple[PreTrainedConfig, str]]:
    """List a config and those inside it, with what their fields' names begin with."""
    configs = [(config, "")]
    for name in getattr(config, "sub_configs", {}) or {}:
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict):
            configs += [(inner, f"{name}.{prefix}") for inner, prefix in configs_of(part)]
    return configs


def size_values(source: str | Json) -> dict[str, int]:
    """Return the sizes of a config that a trace makes symbols of, by their full names."""
    return _by_full_name(source, size_fields)


def whole_fields(source: str | Json) -> dict[str, int]:
    """Return every whole number of a config, as its class has read it, by full name."""
    return _by_full_name(source, _whole)


def _whole(config: PreTrainedConfig) -> dict[str, int]:
    return {name: value for name, value in vars(config).items() if type(value) is int}


def _by_full_name(
    source: str | Json, fields: Callable[[PreTrainedConfig], dict[str, int]]
) -> dict[str, int]:
    """Return what `fields` picks of a config and of those inside it."""
    _, config, _ = chosen_class(source)
    return {
        prefix + name: value
        for owner, prefix in configs_of(config)
        for name, value in fields(owner).items()
    }


def layer_fields(source: str | Json, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
    """Return the numbers of a config that may say how many layers there are of a kind: its counts
    of layers, which of them are of another kind, and what code made constant, perhaps for that.
    """
    _, config, _ = chosen_class(source)
    fields = {
        prefix + name: value
        for owner, prefix in configs_of(config)
        for name, value in vars(owner).items()
        if name in LAYER_COUNTS | LAYER_PATTERNS
        and type(value) is int
        and value > _EVERY.get(name, 0)
    }
    return {**fields, **{letter.name: number for letter, number in constants.items()}}


def with_fields(source: str | Json, values: dict[str, int]) -> Json:
    """Return the config with other values of some fields, `part.field` for one of a config inside.

    A part that is written out for the first time keeps its numbers of layers: left to itself it
    would take those of its own class, not those that the whole model gives it.
    """
    config = default_config(source) if isinstance(source, str) else dict(source)
    inner = _inner(source)
    inside = {name.rpartition(".")[0] for name in values} - {""}
    fields = {
        name: value
        for name, value in layer_fields(source, {}).items()
        if name.rpartition(".")[0] in inside
    }
    for name, value in {**fields, **values}.items():
        *parts, last = (inner + name).split(".")
        owner = config
        for part in parts:
            owner[part] = dict(owner.get(part) or {})
            owner = owner[part]
        owner[last] = value
    return {**config, **_layers_spelled_out(source, values)}


def _layers_spelled_out(source: str | Json, values: dict[str, int]) -> Json:
    """Write GPT-Neo's `attention_types` for another number of layers."""
    if "num_layers" not in values:
        return {}
    _, config, _ = chosen_class(source)
    match getattr(config, "attention_types", None):
        case [[[*kinds], int()]] if kinds:
            times, rest = divmod(values["num_layers"], len(kinds))
            runs = [[kinds, times], [kinds[:rest], 1]]
            return {"attention_types": [run for run in runs if run[0] and run[1]]}
    return {}


def _inner(source: str | Json) -> str:
    """Return the prefix of fields' names in the whole config, where a class takes a part of it."""
    _, config, choice = chosen_class(source)
    config_of = config_class(choice.model_type)
    if isinstance(config, config_of):
        return ""
    return next(
        (
            f"{name}."
            for name in ("text_config", "decoder")
            if name in getattr(config_of, "sub_configs", {})
        ),
        "",
    )


THEIR_HEADS = {"num_key_value_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads"}
EVERY_PAIR = (
    "transformers' eager attention computes every pair and masks afterwards, so its code has no "
    "causal FLOPs; our reference modules have them: ask for a model of the catalog"
)


class TransformersTrace:
    """transformers' module with symbols for its config's sizes."""

    def __init__(self, sizes: Sizes, module: nn.Module, run_as: As) -> None:
        self.sizes, self._module, self._run_as = sizes, module, run_as
        self._roles = Roles(module)
        self._runs: dict[tuple[int, bool], TracedRun | Exception] = {}

    def amounts(self, quantity: str, seq_len: int) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role and layer, and notes; `seq_len` is behind S."""
        if quantity == "causal_matmul_flops":
            raise NotTraced(EVERY_PAIR)
        if quantity in OF_PARAMS:
            every, active = traced_params(self._module, self._roles, self.sizes)
            amounts = every if quantity == "params" else active
            if amounts is None:
                raise NotTraced("nothing says how many experts a token meets")
            return amounts, ()
        decode = "decode" in quantity
        run = self._run(seq_len, decode)
        amounts = {"kv_cache_bytes": run.cache, "state_bytes": run.state}.get(quantity)
        products = run.decode if decode else run.prefill
        if quantity not in IN_BYTES and products is not None:
            idle = quantity in IDLE_OF.values()
            amounts = flops_of_roles(products, idle=idle)
            amounts = with_kv_len(amounts) if decode else amounts
        if amounts is None:
            raise NotTraced(f"its class does not generate: there is no {quantity}")
        return amounts, run.assumed

    def _run(self, seq_len: int, decode: bool) -> TracedRun:
        key = seq_len, decode
        if key not in self._runs:
            try:
                with with_symbols(type(self._module)):
                    self._runs[key] = traced_forward(
                        self._module,
                        self._roles,
                        self.sizes,
                        seq_len,
                        self._run_as,
                        decode=decode,
                    )
            except Exception as error:
                self._runs[key] = error
        run = self._runs[key]
        if isinstance(run, Exception):
            raise run
        return run


class TransformersSource:
    """One config, and the class of transformers that it means."""

    def __init__(
        self,
        config: str | Json,
        dtype: torch.dtype,
        run_as: As = As(),
    ) -> None:
        self._config, self._dtype, self._run_as = config, dtype, run_as
        self._values = size_values(config)
        self._last_run: tuple[tuple[int, Workload], MeasuredRun] | None = None
        module, self._choice = build_transformers(config, dtype=dtype)
        self._own = module
        self.has_encoder = kind_of(module) == "encoder-decoder"

    def described(self) -> str:
        """Say whose code this is, with versions."""
        return f"transformers {version()}, torch {torch.__version__}: {self._choice}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes that may be symbols, by their full names."""
        return dict(self._values)

    def layer_fields(self, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
        """Return the numbers that may say how many layers there are of a kind."""
        return layer_fields(self._config, constants)

    def ways(self) -> Iterator[Way]:
        """Yield the ways to build with symbols, best first."""
        hints = apart(self._values, THEIR_HEADS)
        if hints and not self._run_as.tied:
            yield {"hints": hints}
        yield {}
        last = frozenset(name.rpartition(".")[2] for name in self._values)
        positions = frozenset(name for name in last if "position" in name)
        if positions:
            yield {"skipped": positions}
        experts = last & EXPERT_COUNTS
        if experts:
            yield {"skipped": experts}

    def traced(self, way: Way) -> TransformersTrace:
        """Build the module with symbols, in one of the ways."""
        sizes = Sizes()
        module, _, _ = traced_module(
            self._config,
            sizes,
            dtype=self._dtype,
            hints=way.get("hints"),
            skipped=way.get("skipped", frozenset()),
        )
        return TransformersTrace(sizes, module, self._run_as)

    def built(self, change: dict[str, int]) -> Built | None:
        """Build the module with other numbers, with all the numbers that its config then has."""
        if not change:
            return Built(module=self._own, numbers=whole_fields(self._config))
        other = with_fields(self._config, change)
        try:
            module, _ = build_transformers(other, dtype=self._dtype)
            return Built(module=module, numbers=whole_fields(other))
        except SpecError:
            return None

    def other(self, change: dict[str, int]) -> TransformersSource | None:
        """Return the config with other numbers for some sizes; None where no model has them."""
        try:
            return TransformersSource(with_fields(self._config, change), self._dtype, self._run_as)
        except SpecError:
            return None

    def measured(
        self, module: nn.Module, quantity: str, workload: Workload
    ) -> dict[str, int] | None:
        """Measure a quantity of a module that was built with numbers, by role."""
        if quantity == "causal_matmul_flops":
            raise NotTraced(EVERY_PAIR)
        if quantity in OF_PARAMS:
            measured = measure_any_params(module, Roles(module))
            return measured.by_role if quantity == "params" else measured.active_by_role
        key = id(module), workload
        if self._last_run is None or self._last_run[0] != key or module is not self._own:
            run = measure_any_forward(module, workload, Roles(module))
            self._last_run = key, run
        run = self._last_run[1]
        if quantity in IDLE_OF.values():
            flops = run.decode if "decode" in quantity else run.prefill
            return None if flops is None else {"moe": flops.idle}
        return run.parts(quantity)
