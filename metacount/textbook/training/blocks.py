"""The blocks of a model by their kind: how many there are, and what the backward keeps of one."""

from __future__ import annotations

from metacount.formulas.run import FULL, Pass
from metacount.formulas.step import saved_in_block
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
            found[kind] = _of_block(spec, run, part, index)
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


def _of_block(spec: ModelSpec, run: Pass, part: Stack, index: int) -> int:
    if run.checkpointing == FULL:
        n = run.source if spec.has_encoder and part is not spec.decoder else run.seq_len
        return int(run.batch_size * n * spec.d_model * run.bytes_per_value)
    return int(saved_in_block(spec, run, part, index))
