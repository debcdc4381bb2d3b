"""A real forward of both modules of a config, with the same weights: do they compute the same?

Counts say nothing of what is computed. Here transformers' module gets random weights, the reference
module the same ones, and both run on the same tokens. A module that is larger than the device
runs through accelerate's dispatch: what the device does not hold is offloaded, from CUDA to the
CPU, from the CPU to disk.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import chosen_class, made_really
from metacount.huggingface.module.witness import shortfall
from metacount.huggingface.weights import COMPUTED, CONSTANTS, WeightsError, load_weights
from metacount.measure.theirs import quiet, silent
from metacount.measure.transformers_private import use_fused_attention, use_plain_experts
from metacount.modules.block import Block
from metacount.modules.build import build
from metacount.modules.model import Model as Reference
from metacount.modules.model import Output
from metacount.tensors import tensor_bytes
from metacount.units import gib

if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.given import Model

LENGTH = 16  # where none is asked for
# Of the largest logit, in float32: equal mathematics in another order differs by some 1e-6 a layer,
# a feature that is missing on one side by a hundredth or more.
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Forward:
    """How far apart two forwards are, relative to the largest value of transformers'.

    It is None where a value is not finite, or a shape another. `compared`: logits, or hidden states
    where there is no output head. `offloaded_bytes`: of each module, what the device did not hold.
    `refused` says why nothing was run; empty otherwise.
    """

    device: str
    batch_size: int
    seq_len: int
    compared: str = ""
    values: int = 0
    largest_value: float = 0.0
    largest_difference: float | None = None
    offloaded_bytes: tuple[int, int] = (0, 0)
    refused: str = ""

    @property
    def agree(self) -> bool | None:
        """Whether they compute the same in float32; None where nothing was run."""
        if self.refused:
            return None
        return self.largest_difference is not None and self.largest_difference <= TOLERANCE

    def to_dict(self) -> Json:
        """Return plain data."""
        theirs, ours = self.offloaded_bytes
        return {
            **vars(self),
            "offloaded_bytes": {"transformers": theirs, "reference": ours},
            "dtype": "fp32",
            "tolerance": TOLERANCE,
            "agree": self.agree,
        }


def compare_forwards(
    model: Model,
    *,
    device: str = "cpu",
    memory: int | None = None,
    batch_size: int = 1,
    seq_len: int | None = None,
) -> Forward:
    """Run both modules of a config in float32 and compare what they give.

    The model has a config. `memory` is what a module may take of the device (default: all that it
    has), in bytes. Raises `InputError` without the device, and for modules that no memory holds.
    """
    assert model.source is not None and not model.refused
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--forward cuda: torch finds no CUDA device here; choose cpu")
    length = min(LENGTH, model.spec.longest or LENGTH) if seq_len is None else seq_len
    config, mapped = model.source.config, spec_from_config(model.source.config)
    workload: dict[str, Any] = {"device": device, "batch_size": batch_size, "seq_len": length}
    _check_memory(model)
    vocab = mapped.spec.vocab_size
    if vocab is None:
        return Forward(**workload, refused="it reads no tokens: nothing is known to give it")
    if mapped.differs:
        why = f"the reference computes something else: {'; '.join(mapped.differs)}"
        return Forward(**workload, refused=why)
    chosen, made, _ = chosen_class(config)
    use_plain_experts(made)
    if config.get("alibi"):
        use_fused_attention(made)  # eager Falcon adds its ALiBi twice
    theirs = made_really(chosen, made)
    randomise(theirs, seed=0)
    ours = build(mapped.spec, device="cpu", dtype="fp32", seed=1)
    try:
        load_weights(ours, theirs.state_dict(), mapped)
    except WeightsError as error:
        return Forward(**workload, refused=str(error))
    generator = torch.Generator().manual_seed(2)
    shape = (batch_size, length)
    tokens, source = (torch.randint(vocab, shape, generator=generator) for _ in range(2))
    unsplit = sorted(getattr(theirs, "_no_split_modules", None) or ())
    with _dispatched(theirs, device, memory, unsplit) as theirs_away:
        try:
            compared, expected = _of_transformers(theirs, tokens.to(device), source.to(device))
        except Exception as error:  # whatever somebody else's forward raises
            return Forward(**workload, refused=shortfall(error))
    del theirs
    with _dispatched(ours, device, memory, [Block.__name__]) as ours_away:
        given = _of_reference(ours, compared, tokens.to(device), source.to(device))
    scale, apart = float(expected.abs().max()), math.inf
    if given.shape == expected.shape:
        apart = float((given - expected).abs().max()) / scale
    return Forward(
        **workload,
        compared=compared,
        values=expected.numel(),
        largest_value=scale if math.isfinite(scale) else 0.0,
        largest_difference=apart if math.isfinite(apart) else None,
        offloaded_bytes=(theirs_away, ours_away),
    )


CHOICES = "tid2eid"  # of a token's experts, by number, beside the router's weight


def randomise(module: nn.Module, seed: int) -> None:
    """Give a module weights none of which is zero, one or equal to another."""
    generator = torch.Generator().manual_seed(seed)
    stored = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = module.state_dict().keys()  # but what sizes give, and what is one number everywhere
    fixed = (*COMPUTED, *CONSTANTS)
    with torch.no_grad():
        for name, tensor in stored.items():
            if name not in given or name.endswith(fixed):
                continue
            if name.endswith(CHOICES):
                n_experts = stored[f"{name.rpartition('.')[0]}.weight"].shape[0]
                order = torch.rand(len(tensor), n_experts, generator=generator).argsort(-1)
                tensor.copy_(order[:, : tensor.shape[-1]])
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if tensor.dim() == 1:
                tensor.copy_(0.8 + 0.3 * noise)
            else:
                tensor.copy_(noise * 1.2 / tensor.shape[-1] ** 0.5)


def _check_memory(model: Model) -> None:
    """Raise `InputError` where this machine cannot hold both modules, which are made on the CPU."""
    from metacount.formulas.model import params

    needed = 2 * 4 * int(params(model.spec))  # two modules in float32
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > has:
        raise InputError(
            f"--forward makes both modules in float32, {gib(needed)} in all, and this machine has "
            f"{gib(has)}; give a config with fewer layers"
        )


@contextmanager
def _dispatched(
    module: nn.Module, device: str, memory: int | None, unsplit: list[str]
) -> Iterator[int]:
    """Put a module on a device, what it has no room for elsewhere; yield the bytes of those.

    What stands outside blocks stays on the device: a tied head reads the table of the embedding.
    """
    main: int | str = 0 if device == "cuda" else "cpu"
    size = tensor_bytes([*module.parameters(), *module.buffers()])
    if memory is None:
        memory = torch.cuda.mem_get_info()[0] if device == "cuda" else size
    if size <= memory:
        module.to(device)
        yield 0
        return
    with silent(), tempfile.TemporaryDirectory() as folder:
        from accelerate import dispatch_model, infer_auto_device_map
        from accelerate.utils import compute_module_sizes

        blocks = [path for path, part in module.named_modules() if type(part).__name__ in unsplit]
        sizes = compute_module_sizes(module)
        ends = size - sum(sizes[path] for path in blocks)
        largest = max((sizes[path] for path in blocks), default=0)
        if not blocks or ends + largest > memory:
            raise InputError(
                f"--memory {gib(memory)} must hold what is outside the blocks and one of these, "
                f"{gib(ends + largest)}"
            )
        room: dict[int | str, int] = {main: memory}
        if device == "cuda":
            room["cpu"] = size
        parts = infer_auto_device_map(module, room, no_split_module_classes=unsplit)
        inside = tuple(f"{path}." for path in blocks)
        parts = {
            part: place if f"{part}.".startswith(inside) else main for part, place in parts.items()
        }
        with quiet():
            dispatch_model(
                module,
                parts,
                main_device=main,
                offload_dir=folder,
                preload_module_classes=unsplit,
            )
        yield sum(sizes[part] for part, place in parts.items() if place != main)


@torch.no_grad()
def _of_transformers(module: Any, tokens: Tensor, source: Tensor) -> tuple[str, Tensor]:
    """Run transformers' module; return what it gives, and what that is."""
    how: dict[str, Any] = {"input_ids": tokens}
    if getattr(module.config, "is_encoder_decoder", False):
        how = {"input_ids": source, "decoder_input_ids": tokens}
    with quiet():
        output = module(**how)
    logits: Tensor | None = getattr(output, "logits", None)
    if logits is not None:
        return "logits", logits.float().cpu()
    hidden: Tensor = output.last_hidden_state
    return "hidden states", hidden.float().cpu()


@torch.no_grad()
def _of_reference(module: Reference, compared: str, tokens: Tensor, source: Tensor) -> Tensor:
    """Run the reference module; return the same of it."""
    memory = {"memory_BTD": module.encode(source)} if module.spec.has_encoder else {}
    output: Output = module(tokens, **memory)
    values = output.logits_BSV if compared == "logits" else output.hidden_BSD
    assert values is not None  # both are of one spec
    return values.float().cpu()
