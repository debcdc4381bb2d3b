"""The blocks of a model by their kind: how many there are, and what the backward keeps of one."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.pieces import remembered
from metacount.formulas.step import saved_in_block
from metacount.formulas.tape import FULL, SDPA, Pass
from metacount.spec import ModelSpec
from metacount.spec.position import Rope
from metacount.spec.stack import WITH_ATTENTION

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
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
    kinds = remembered(spec, "kinds of blocks", lambda: _kinds(spec))
    return {kind: _of_block(spec, run, part, index) for kind, (_, part, index) in kinds.items()}


def block_numbers(spec: ModelSpec) -> dict[str, int]:
    """Count the blocks of each kind.

    >>> from metacount.catalog import entry
    >>> block_numbers(entry("deepseek-v3").spec())
    {'dense': 3, 'experts': 58}
    """
    kinds = remembered(spec, "kinds of blocks", lambda: _kinds(spec))
    return {kind: number for kind, (number, _, _) in kinds.items()}


def _kinds(spec: ModelSpec) -> dict[str, tuple[int, Stack, int]]:
    """Find the kinds of blocks, in words: how many, and stack and number of the first."""
    last, positions = spec.last_stack, spec.positions
    turns = positions.law.holds if isinstance(positions, Rope) else None
    found: dict[str, tuple[int, Stack, int]] = {}
    for part in spec.stacks:
        of_encoder = spec.has_encoder and part is not spec.decoder
        words = ["encoder"] if of_encoder else ["decoder"] if spec.has_encoder else []
        kinds = (
            (last.mixer_of(i), last.ffn_of(i), turns is None or turns(i))
            for i in range(part.n_layers)
        )
        first: dict[tuple[str, str, bool], tuple[int, int]] = {}
        for index, kind in enumerate(kinds):
            number, at = first.get(kind, (0, index))
            first[kind] = number + 1, at
        for (mixer, ffn, turned), (number, at) in first.items():
            said = [*words] if last.uniform else [*words, MIXERS[mixer]]
            said.append(FFNS[ffn])
            if not turned and mixer in WITH_ATTENTION:
                said.append("without rotation")
            name = ", ".join(said)
            before, stack, earliest = found.get(name, (0, part, at))
            found[name] = before + number, stack, earliest
    return found


def _of_block(spec: ModelSpec, run: Pass, part: Stack, index: int) -> int:
    if run.checkpointing == FULL:
        n = run.source if spec.has_encoder and part is not spec.decoder else run.seq_len
        return int(run.batch_size * n * spec.d_model * run.bytes_per_value)
    stack = spec.last_stack
    seen = {bool(spec.is_windowed_layer(i)) for i in range(stack.n_layers)}
    if run.attention == SDPA and len(seen) > 1:  # blocks that see a window share a mask
        rule = "has no formula of what one block keeps where some see a window"
        raise SpecError("attention", rule, SDPA, "choose eager or flash")
    return int(saved_in_block(spec, run, part, index))
