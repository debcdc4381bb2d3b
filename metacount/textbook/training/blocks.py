"""The blocks of a model by their kind: how many there are, and what the backward keeps of one."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.forward import FULL, SELECTIVE, Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_masks import has_mask, window_kept
from metacount.formulas.kept_model import block_terms
from metacount.spec import ModelSpec
from metacount.spec.position import Rope
from metacount.spec.stack import WITH_ATTENTION

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.spec.stack import Stack

MIXERS = {
    "A": "attention",
    "R": "recurrent",
    "P": "attention and recurrent",
    "S": "recurrent behind a shared block",
    "N": "no mixer",
}
FFNS = {"F": "dense", "E": "experts", "B": "dense and experts", "N": "no feed-forward"}


def block_bytes(spec: ModelSpec, run: Pass) -> dict[str, int]:
    """Count the bytes that one block of each kind keeps, by its kind.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=2048)
    >>> block_bytes(entry("llama-7b").spec(), run)
    {'dense': 1226850304}
    """
    found: dict[str, int] = {}
    for kind, part, index in _blocks(spec):
        if kind not in found:
            of_encoder = spec.has_encoder and part is not spec.decoder
            n = run.source if of_encoder else run.seq_len
            found[kind] = _of_block(spec, run, n, index, part is spec.decoder)
    return found


def block_numbers(spec: ModelSpec) -> dict[str, int]:
    """Count the blocks of each kind.

    >>> from metacount.catalog import entry
    >>> block_numbers(entry("deepseek-v3").spec())
    {'dense': 3, 'experts': 58}
    """
    found: dict[str, int] = {}
    for kind, _, _ in _blocks(spec):
        found[kind] = found.get(kind, 0) + 1
    return found


def _blocks(spec: ModelSpec) -> Iterator[tuple[str, Stack, int]]:
    """Yield every block: its kind in words, its stack, its number there."""
    for part in spec.stacks:
        of_encoder = spec.has_encoder and part is not spec.decoder
        words = ["encoder"] if of_encoder else ["decoder"] if spec.has_encoder else []
        for index in range(part.n_layers):
            yield ", ".join([*words, *_kind(spec, index)]), part, index


def _kind(spec: ModelSpec, index: int) -> list[str]:
    """Say in words what distinguishes a block from others of its stack."""
    last = spec.last_stack
    mixer, ffn = last.mixer_of(index), last.ffn_of(index)
    words = [FFNS[ffn]] if last.uniform else [MIXERS[mixer], FFNS[ffn]]
    if isinstance(spec.positions, Rope) and not spec.has_rope_layer(index):
        words += ["without rotation"] if mixer in WITH_ATTENTION else []
    return words


def _of_block(spec: ModelSpec, run: Pass, n: int, index: int, decodes: bool) -> int:
    if run.checkpointing == SELECTIVE:
        rule = "has no formula of what one block keeps"
        raise SpecError("checkpointing", rule, SELECTIVE, "choose none or full")
    if run.checkpointing == FULL:
        return int(run.batch_size * n * spec.d_model * run.bytes_per_value)
    masked = has_mask(spec, index)
    every = {has_mask(spec, other) for other in range(spec.last_stack.n_layers)}
    if window_kept(spec, run, n) and len(every) > 1:
        rule = "has no formula of what one block keeps where some see a window"
        raise SpecError("attention", rule, run.attention, "choose eager or flash")
    terms = window_kept(spec, run, n) if masked else []
    terms += block_terms(
        spec,
        run,
        n,
        rotated=spec.has_rope_layer(index),
        cross=spec.has_encoder and decodes,
        mixer=spec.last_stack.mixer_of(index),
        ffn=spec.last_stack.ffn_of(index),
    )
    return int(bytes_of(terms))
