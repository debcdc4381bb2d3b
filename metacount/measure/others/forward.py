"""Runs a module that is not ours over a workload on meta: prefill, one token, and the cache."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from metacount.measure.others.cache import holds_tensors, measure_cache
from metacount.measure.others.flops import CounterByClass
from metacount.measure.others.fold import Folding, folded
from metacount.measure.others.params import routing
from metacount.measure.others.quiet import quiet
from metacount.measure.others.roles import Roles
from metacount.measure.questions import NeedsData
from metacount.measure.result import MeasuredFlops, MeasuredRun
from metacount.spec import Workload

# Under which name an output returns its cache, and takes it back.
CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
SHORT = (torch.bfloat16, torch.float16)

T = TypeVar("T")
TAKES_NONE = "its forward takes no cache"

# Models with an input of their own: ids in several rows per sequence; all tokens at each step;
# a cache that is changed but not returned.
ROWS = {"MusicgenForCausalLM": "num_codebooks", "MusicgenMelodyForCausalLM": "num_codebooks"}
ALL_TOKENS = frozenset(["CpmAntForCausalLM"])
KEEPS_GIVEN = frozenset(["RecurrentGemmaForCausalLM"])


def kind_of(model: Any) -> str:
    """Name how the model is run: whether it has an encoder, whether it writes token after token."""
    takes = inspect.signature(model.forward).parameters
    if "decoder_input_ids" in takes and getattr(model.config, "is_encoder_decoder", False):
        return "encoder-decoder"
    return "decoder" if model.can_generate() else "encoder"


def measure_any_forward(
    model: nn.Module, workload: Workload, roles: Roles | None = None, *, fold: bool = True
) -> MeasuredRun:
    """Run transformers' `model` (on meta) over `workload` and measure it.

    With `fold`, layers proven alike run once. Raises `UncountedOp` and `NeedsData`, and whatever
    the model raises when it cannot run.
    """
    roles = Roles(model) if roles is None else roles
    roles.routed = routing(model)[0]
    run, note = as_it_runs(model, lambda: _measured(model, workload, roles, fold))
    if note:
        run = run.halved()
    return dataclasses.replace(run, assumed=(*run.assumed, *note))


WIDENED = "run in float32: its code does not run in 16 bits"


def as_it_runs(model: nn.Module, measure: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    """Run `measure`, with the model in float32 where its code fails in 16 bits; say so then.

    A run in float32 is right for FLOPs, and for bytes of caches once they are halved: for no other.
    """
    tensors = (*model.parameters(), *model.buffers())
    dtypes = [t.dtype for t in tensors]

    def attempt() -> T | RuntimeError:
        try:
            return measure()
        except NeedsData:
            raise
        except RuntimeError as error:
            return error

    found = attempt()
    if dtypes != [t.dtype for t in tensors]:  # Switch's router widens itself where it first runs
        found = attempt()
    if not isinstance(found, RuntimeError):
        return found, ()
    short = [t for t in tensors if t.dtype in SHORT]
    before = [t.dtype for t in short]
    for tensor in short:
        tensor.data = tensor.data.float()
    try:
        widened = attempt() if short else found
    finally:
        for tensor, dtype in zip(short, before, strict=True):
            tensor.data = tensor.data.to(dtype)
    if isinstance(widened, RuntimeError):
        raise found
    return widened, (WIDENED,)


def _measured(model: nn.Module, workload: Workload, roles: Roles, fold: bool) -> MeasuredRun:
    kind = kind_of(model)
    with folded(model, enabled=fold) as folding:
        run = Runner(model, workload, roles, kind, folding)
        prefill, cache = run.prefill()
        assumed = prefill.ordinary.assumed | prefill.said
        nothing = kind == "encoder" or cache is None or run.no_cache
        if nothing:
            return MeasuredRun(
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
    return MeasuredRun(
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
        self._memory: Tensor | None = None
        self.no_cache = ""
        self.counter: Callable[..., CounterByClass] = CounterByClass
        self.takes_cache = any(name in self._takes for name in CACHES)

    def prefill(self) -> tuple[CounterByClass, object]:
        """Run a forward over the whole workload; without a cache, and `no_cache` says why, where
        the model fails with its own.
        """
        try:
            return self.forward(self._workload.seq_len)
        except (AttributeError, IndexError, ValueError, TypeError) as error:
            if self._kind == "encoder":
                raise
            self.no_cache = f"it fails with a cache: {type(error).__name__}: {str(error)[:120]}"
            return self.forward(self._workload.seq_len)

    def forward(self, length: int, *, cache: object = None) -> tuple[CounterByClass, object]:
        """Run one forward over `length` tokens, from a cache if there is one;
        return its counter and the cache after.
        """
        seen = 0 if cache is None else self._workload.seq_len - length
        counter = self.counter(self._roles, last_position=seen + length - 1)
        given = self.inputs(length, seen, cache)
        with quiet(), counter.watching(self._model), self._folding.counting(counter):
            out = self._model(**given)
        self._memory = getattr(out, "encoder_last_hidden_state", self._memory)
        for name in CACHES:
            after = getattr(out, name, None)
            if after is not None:
                return counter, after
        # some change the cache they get and do not return it
        own = given.get("past_key_values")
        return counter, own if own is not None and holds_tensors(own) else None

    def inputs(self, length: int, seen: int = 0, cache: object = None) -> dict[str, Any]:
        """Build the inputs of a forward over `length` tokens,
        with `seen` tokens before them in a cache.
        """
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


def _flops(counter: CounterByClass) -> MeasuredFlops:
    return MeasuredFlops(
        by_role=counter.by_role(),
        by_operator=counter.by_operator(),
        rotary=counter.rotary(),
        by_module=counter.chosen_by_module(),
        idle=counter.idle(),
    )
