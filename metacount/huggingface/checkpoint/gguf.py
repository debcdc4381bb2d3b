"""A GGUF file as a checkpoint: its tensors under the names and in the shapes of a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metacount.errors import shown
from metacount.formats.gguf import ARCHITECTURE
from metacount.formats.gguf_header import Header, read_header
from metacount.huggingface.checkpoint.compare import Convert, join_stacks
from metacount.huggingface.checkpoint.formats import Weight
from metacount.huggingface.checkpoint.header import StoredTensor
from metacount.huggingface.checkpoint.witness import CheckpointReport, join

if TYPE_CHECKING:
    from torch import nn

# A stack of experts' matrices -> the module's tensor, and its place where it holds two.
EXPERTS = {
    "ffn_gate_exps": ("gate_up_proj", 0),
    "ffn_up_exps": ("gate_up_proj", 1),
    "ffn_down_exps": ("down_proj", 0),
}
# Tables of RoPE, which a module computes.
ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_gguf(path: str) -> tuple[CheckpointReport, Header]:
    """Read what a GGUF file holds, and its header."""
    header = read_header(path)
    where = shown(path)
    tensors = [
        StoredTensor(t.name, t.dtype, t.shape, where, (t.block, t.size)) for t in header.tensors
    ]
    return join(where, None, [tensors]), header


def gguf_conversion(module: nn.Module, header: Header) -> Convert:
    """Build the conversion of a file's tensors into those of a module of transformers.

    Names are the library's to say; gate and up of all experts stand together in the module.
    """
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    name = header.keys[ARCHITECTURE]
    kind = next(kind for kind, known in MODEL_ARCH_NAMES.items() if known == name)
    table = get_tensor_name_map(kind, header.keys[f"{name}.block_count"])
    theirs: dict[str, str] = {}
    experts: dict[tuple[str, str], str] = {}
    for parameter, _ in module.named_parameters(remove_duplicate=False):
        found = table.get_name(parameter, try_suffixes=(".weight", ".bias"))
        if found is not None:
            theirs[found] = parameter
        stem, _, leaf = parameter.rpartition(".")
        numbers = [step for step in stem.split(".") if step.isdecimal()]
        if leaf in ("gate_up_proj", "down_proj") and len(numbers) == 1:
            experts[numbers[0], leaf] = parameter

    def convert(weights: Sequence[Weight]) -> list[Weight]:
        done: list[Weight] = []
        stacks: dict[str, dict[int, Weight]] = {}
        for weight in weights:
            parts = weight.name.split(".")
            target, place = "", 0
            if len(parts) == 4 and parts[2] in EXPERTS:
                leaf, place = EXPERTS[parts[2]]
                target = experts.get((parts[1], leaf), "")
            if target:
                stacks.setdefault(target, {})[place] = weight
            elif weight.name in ROPE:
                done.append(weight._replace(name=f"{weight.name.removesuffix('.weight')}.inv_freq"))
            else:
                done.append(weight._replace(name=theirs.get(weight.name, weight.name)))
        for target, pieces in stacks.items():
            done += join_stacks(target, [pieces[place] for place in sorted(pieces)])
        return done

    return convert
