"""Runs a module that is not ours over a workload on meta: prefill, one token, and the cache."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from metacount.measure.others.flops import ForeignCounter
from metacount.measure.others.fold import Folding, folded
from metacount.measure.others.params import routing
from metacount.measure.others.quiet import quiet
from metacount.measure.others.roles import Roles
from metacount.measure.questions import NeedsData
from metacount.spec import Workload
from metacount.tensors import tensor_bytes

# Under which name an output returns its cache, and takes it back.
CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
# Attributes of a cache that hold keys and values of tokens; anything else is recurrent state.
TOKEN_TENSORS = frozenset(
    ["keys", "values", "indexer_keys", "compressed_kv", "mems", "buckets_cache", "states_cache"]
)
CROSS = "cross_attention_cache"
SHORT = (torch.bfloat16, torch.float16)
CONTAINERS = frozenset(["layers", "self_attention_cache", CROSS])

TAKES_NONE = "its forward takes no cache"

# Models with an input of their own: ids in several rows per sequence; all tokens at each step;
# a cache that is changed but not returned.
ROWS = {"MusicgenForCausalLM": "num_codebooks", "MusicgenMelodyForCausalLM": "num_codebooks"}
ALL_TOKENS = frozenset(["CpmAntForCausalLM"])
KEEPS_GIVEN = frozenset(["RecurrentGemmaForCausalLM"])


@dataclass(frozen=True, kw_only=True)
class ForeignFlops:
    """FLOPs of one forward. `rotary` makes the tables of rotary angles and is in no role."""

    by_role: dict[str, int]
    by_operator: dict[str, int]
    rotary: int
    idle: int = 0  # of the figures: experts run on tokens that did not choose them

    @property
    def matmul_flops(self) -> int:
        """Without rotary tables, which no textbook counts."""
        return sum(self.by_role.values())

    @property
    def chosen_by_role(self) -> dict[str, int]:
        """By role, with each token's chosen experts alone."""
        return {**self.by_role, "moe": self.by_role["moe"] - self.idle}

    @property
    def chosen_by_operator(self) -> dict[str, int]:
        """By operator, likewise; idle experts are all in batched products."""
        batched = self.by_operator.get("aten.bmm", 0) - self.idle
        return {**self.by_operator, **({"aten.bmm": batched} if batched else {})}

    @property
    def all_flops(self) -> int:
        """Everything that ran."""
        return self.matmul_flops + self.rotary


@dataclass(frozen=True, kw_only=True)
class ForeignCache:
    """Bytes of a cache object, by what they are. `by_name` is by the attribute that holds them."""

    kv_bytes: int
    cross_kv_bytes: int
    state_bytes: int
    by_name: dict[str, int]
    key_heads: int = 0  # heads of the keys as cached; a compressed latent has one

    def halved(self) -> ForeignCache:
        """The bytes in a type of half the size."""
        return ForeignCache(
            kv_bytes=self.kv_bytes // 2,
            cross_kv_bytes=self.cross_kv_bytes // 2,
            state_bytes=self.state_bytes // 2,
            by_name={name: size // 2 for name, size in self.by_name.items()},
            key_heads=self.key_heads,
        )


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """What running the workload showed. `cache` is None where the model returns none."""

    kind: str  # decoder, encoder, encoder-decoder
    prefill: ForeignFlops
    decode: ForeignFlops | None
    cache: ForeignCache | None
    kv_bytes_per_token: int | None
    assumed: tuple[str, ...]
    no_cache: str = ""  # why there is none; empty for an encoder, which keeps none

    def halved(self) -> ForeignRun:
        """The same with its cache in a type of half the size."""
        if self.cache is None or self.kv_bytes_per_token is None:
            return self
        return dataclasses.replace(
            self, cache=self.cache.halved(), kv_bytes_per_token=self.kv_bytes_per_token // 2
        )


def kind_of(model: Any) -> str:
    """How the model is run: does it have an encoder, does it write token after token."""
    takes = inspect.signature(model.forward).parameters
    if "decoder_input_ids" in takes and getattr(model.config, "is_encoder_decoder", False):
        return "encoder-decoder"
    return "decoder" if model.can_generate() else "encoder"


def measure_foreign_forward(
    model: nn.Module, workload: Workload, roles: Roles | None = None, *, fold: bool = True
) -> ForeignRun:
    """Run transformers' `model` (on meta) over `workload` and measure it.

    With `fold`, layers proven alike run once. Raises `UncountedOp` and `NeedsData`, and whatever
    the model raises when it cannot run.
    """
    roles = Roles(model) if roles is None else roles
    roles.routed = routing(model)[0]
    config: Any = model.config
    first: RuntimeError | None = None
    for change, note in CHANGES:
        before = getattr(config, "_experts_implementation", None)
        with changed(model, change):
            try:
                run = _measured(model, workload, roles, fold)
            except NeedsData:
                raise
            except RuntimeError as error:
                first = first or error
                continue
            finally:
                config._experts_implementation = before
        if change == "float32":
            run = run.halved()
        return dataclasses.replace(run, assumed=(*run.assumed, *note))
    assert first is not None
    raise first


# How a model is run, and what is said of it: as it is; with the experts' product in a form that
# takes any width (a grouped product wants rows of 16 bytes; the FLOPs are the same); in float32,
# where code mixes types.
CHANGES = (
    ("", ()),
    ("batched_mm", ()),
    ("float32", ("run in float32: its code does not run in 16 bits",)),
)


@contextmanager
def changed(model: Any, change: str) -> Iterator[None]:
    if change:
        model.config._experts_implementation = "batched_mm"
    if change != "float32":
        yield
        return
    wider = [t for t in (*model.parameters(), *model.buffers()) if t.dtype in SHORT]
    dtypes = [t.dtype for t in wider]
    for tensor in wider:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, dtype in zip(wider, dtypes, strict=True):
            tensor.data = tensor.data.to(dtype)


def _measured(model: nn.Module, workload: Workload, roles: Roles, fold: bool) -> ForeignRun:
    kind = kind_of(model)
    with folded(model, enabled=fold) as folding:
        run = Runner(model, workload, roles, kind, folding)
        prefill, cache = run.prefill()
        assumed = prefill.ordinary.assumed
        nothing = kind == "encoder" or cache is None or run.no_cache
        if nothing:
            return ForeignRun(
                kind=kind,
                prefill=_flops(prefill),
                decode=None,
                cache=None,
                kv_bytes_per_token=None,
                assumed=tuple(sorted(assumed)),
                no_cache=run.no_cache or _why_none(kind, run),
            )
        found = measure_cache(cache)
        _, single = run.forward(1)
        per_token = measure_cache(single)
        decode = None
        if workload.seq_len > 1:
            _, shorter = run.forward(workload.seq_len - 1)
            decode, _ = run.forward(1, cache=shorter)
    return ForeignRun(
        kind=kind,
        prefill=_flops(prefill),
        decode=None if decode is None else _flops(decode),
        cache=found,
        kv_bytes_per_token=(per_token.kv_bytes - per_token.cross_kv_bytes) // workload.batch_size,
        assumed=tuple(sorted(assumed)),
    )


def _why_none(kind: str, run: Runner) -> str:
    if kind == "encoder":
        return ""
    return "it returns none" if run.takes_cache else TAKES_NONE


class Runner:
    """Forwards of one model over one workload."""

    def __init__(
        self, model: Any, workload: Workload, roles: Roles, kind: str, folding: Folding
    ) -> None:
        self._model, self._workload, self._roles, self._kind = model, workload, roles, kind
        self._folding = folding
        self._takes = inspect.signature(model.forward).parameters
        self._memory: Any = None
        self.no_cache = ""
        self.counter: Callable[..., ForeignCounter] = ForeignCounter
        self.takes_cache = any(name in self._takes for name in CACHES)

    def prefill(self) -> tuple[ForeignCounter, Any]:
        """A forward over the whole workload; without a cache, and `no_cache` says why, where the
        model fails with its own."""
        try:
            return self.forward(self._workload.seq_len)
        except (AttributeError, IndexError, ValueError, TypeError) as error:
            if self._kind == "encoder":
                raise
            self.no_cache = f"it fails with a cache: {type(error).__name__}: {str(error)[:120]}"
            return self.forward(self._workload.seq_len)

    def forward(self, length: int, *, cache: Any = None) -> tuple[ForeignCounter, Any]:
        """One forward over `length` tokens, from a cache if there is one; and the cache after."""
        seen = 0 if cache is None else self._workload.seq_len - length
        counter = self.counter(self._roles, last_position=seen + length - 1)
        given = self._inputs(length, seen, cache)
        with quiet(), counter.watching(self._model), self._folding.counting(counter):
            out = self._model(**given)
        self._memory = getattr(out, "encoder_last_hidden_state", self._memory)
        for name in CACHES:
            after = getattr(out, name, None)
            if after is not None:
                return counter, after
        # some change the cache they get and do not return it
        own = given.get("past_key_values")
        return counter, own if own is not None and measure_cache(own).by_name else None

    def _inputs(self, length: int, seen: int, cache: Any) -> dict[str, Any]:
        name, takes = type(self._model).__name__, self._takes
        rows = self._workload.batch_size
        if name in ROWS:
            rows *= getattr(self._model.config, ROWS[name])
        if name in ALL_TOKENS:
            length += seen
        ids = torch.empty(rows, length, dtype=torch.long, device="meta")
        given: dict[str, Any] = {"return_dict": True} if "return_dict" in takes else {}
        if self._kind == "encoder-decoder":
            given["decoder_input_ids"] = ids
            if cache is None:
                source = self._workload.encoder_len
                given["input_ids"] = torch.empty(rows, source, dtype=torch.long, device="meta")
            else:
                from transformers.modeling_outputs import MoEModelOutput

                # the widest of the encoders' outputs: every model finds in it what it looks for
                given["encoder_outputs"] = MoEModelOutput(last_hidden_state=self._memory)
        else:
            given["input_ids"] = ids
        if "use_cache" in takes and self._kind != "encoder":
            given["use_cache"] = not self.no_cache
        if cache is not None:
            given[next(n for n in CACHES if n in takes)] = cache
        elif name in KEEPS_GIVEN:
            from transformers.cache_utils import DynamicCache

            given["past_key_values"] = DynamicCache(config=self._model.config)
        return given


def _flops(counter: ForeignCounter) -> ForeignFlops:
    return ForeignFlops(
        by_role=counter.by_role(),
        by_operator=counter.by_operator(),
        rotary=counter.rotary(),
        idle=counter.idle(),
    )


def measure_cache(cache: Any) -> ForeignCache:
    """Bytes of every tensor that a cache object holds, once each; single numbers are not state."""
    kv = cross = state = heads = 0
    by_name: dict[str, int] = {}
    for path, tensor in _held(cache, (), set()):
        size = tensor_bytes([tensor])
        names = [name for name in path if not name.isdecimal() and name not in CONTAINERS]
        name = names[0] if names else "state"
        by_name[name] = by_name.get(name, 0) + size
        if name == "keys" and tensor.dim() == 4:
            heads = max(heads, tensor.shape[1])
        if name in TOKEN_TENSORS and CROSS in path:
            cross += size
        elif name in TOKEN_TENSORS:
            kv += size
        else:
            state += size
    return ForeignCache(
        kv_bytes=kv + cross,
        cross_kv_bytes=cross,
        state_bytes=state,
        by_name=by_name,
        key_heads=heads,
    )


def _held(
    value: Any, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        seen.add(id(value))
        if value.dim():
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _held(item, (*path, str(key)), seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*path, str(index)), seen)
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        seen.add(id(value))
        if not hasattr(value, "to_diff_dict"):  # a config holds no cache
            yield from _held(vars(value), path, seen)
