"""What weights say by their headers alone, whatever their architecture: values, bytes and types.

A safetensors file, an index with or without its shards, a folder of weights without a config, a
GGUF file of an architecture that is not read. No value is read, and nothing tells what is computed.
"""

from __future__ import annotations

import os
import re

from metacount.errors import shown
from metacount.frozen import frozen
from metacount.huggingface.checkpoint.header import INDEX, read_local_index
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.formats.tensors import StoredTensor
    from metacount.huggingface.checkpoint.header import (
        Index,
    )

# A group -> words of the names of its tensors, or whole steps of a name; the first that has one.
GROUPS = {
    group: frozenset(words.split())
    for group, words in {
        "experts": "experts expert exps",
        "norm": "norm norms layernorm ln ln1 ln2 rmsnorm",
        "vision": "vision visual",
        "audio": "audio",
        "embedding": "embed embd wte embeddings",
        "attention": "attn attention",
        "head": "lm_head output",
        "recurrent": "ssm mamba",
        "ffn": "mlp ffn feed",
    }.items()
}
NOT_KNOWN = "not known from headers: active parameters, FLOPs and caches; they need a config"


@frozen
class Totals:
    """Values and bytes of weights, in all, by group and by type; `params` None where packed."""

    source: str
    params: int | None
    stored_bytes: int | None
    n_tensors: int
    by_group: dict[str, Json]
    by_dtype: dict[str, Json]
    notes: tuple[str, ...]

    def to_dict(self) -> Json:
        """Return plain data, as `count --json` prints it."""
        data = dict(vars(self))
        name = data.pop("source")
        return {"model": name, "name": name, **data, "source": "header", "notes": [*self.notes]}


def group_of(name: str) -> str:
    """Name the group of a tensor by the words of its name.

    >>> [group_of(name) for name in ("model.layers.0.self_attn.q_proj.weight", "token_embd.weight",
    ...  "blk.1.ffn_up_exps.weight", "blk.1.attn_norm.weight", "output.weight", "x.y")]
    ['attention', 'embedding', 'experts', 'norm', 'head', 'other']
    """
    words = {*re.split(r"[._]", name), *name.split(".")}
    return next((group for group, known in GROUPS.items() if words & known), "other")


def totals_of(path: str) -> Totals | None:
    """Return what the headers of weights say; None of any other file or folder.

    Raises `InputError`, in one line, for weights whose headers are wrong.
    """
    from metacount.files import CONFIG
    from metacount.formats import GGUF, PARAMS

    if path.lower().endswith(GGUF) and os.path.isfile(path):
        return _of_gguf(path)
    start: str | None = path
    if os.path.isdir(path):
        from metacount.huggingface.checkpoint.witness import find_checkpoint

        configs = (os.path.join(path, name) for name in (CONFIG, PARAMS))
        start = None if any(map(os.path.lexists, configs)) else find_checkpoint(path)
    elif not path.endswith((".safetensors", ".safetensors.index.json")):
        return None
    if start is None or not os.path.lexists(start):
        return None
    return _of_safetensors(start)


def _of_gguf(path: str) -> Totals | None:
    from metacount.formats.gguf import ARCHITECTURE, ARCHITECTURES, read_header

    header = read_header(path)
    name = header.keys.get(ARCHITECTURE)
    if not header.tensors or (isinstance(name, str) and name in ARCHITECTURES):
        return None  # its keys are read, or there is nothing to count
    n_values = sum(tensor.n_values for tensor in header.tensors)
    kind = f"GGUF, architecture {shown(repr(name))}, which is not read: its header alone is counted"
    return _totals(path, header.tensors, params=n_values, notes=[kind, NOT_KNOWN])


def _of_safetensors(path: str) -> Totals:
    from metacount.huggingface.checkpoint.formats import quantization_of, unpack
    from metacount.huggingface.checkpoint.witness import read_checkpoint

    folder = os.path.dirname(path) or "."
    if path.endswith(".json"):
        index = read_local_index(path)
        files = set(index.files.values())
        if not any(os.path.lexists(os.path.join(folder, file)) for file in files):
            return _of_index(path, index)
    report = read_checkpoint(path)
    config = _config_beside(folder)
    unpacked = unpack(report.tensors, quantization_of(config))
    notes = [f"{len(report.files)} file{'s' * (len(report.files) > 1)} of safetensors"]
    notes += [f"{n} weights in {name}" for name, n in unpacked.formats.items()]
    if unpacked.scales:
        notes.append(f"{exact(len(unpacked.scales))} tensors are scales, not parameters")
    if (text := report.total_size_text()) is not None:
        notes.append(text)
    sizes = [weight.n_values for weight in unpacked.weights]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes):
        notes.append("the values of packed weights are not known from the header")
    params = sum(known) if len(known) == len(sizes) else None
    notes.append("values of tensors that are no parameters (buffers) are among them")
    return _totals(path, report.tensors, params=params, notes=[*notes, NOT_KNOWN])


def _config_beside(folder: str) -> Json:
    from metacount.errors import InputError
    from metacount.files import CONFIG, read_json

    try:
        config = read_json(os.path.join(folder, CONFIG))
    except InputError:
        return {}
    return config if isinstance(config, dict) else {}


def _of_index(path: str, index: Index) -> Totals:
    """Return what an index says whose shards are not there: nothing of a tensor but its name."""
    groups: dict[str, int] = {}
    for name in index.files:
        groups[group_of(name)] = groups.get(group_of(name), 0) + 1
    source = "metadata.total_size" if index.total_size is not None else "no total_size"
    notes = [
        f"{INDEX.removeprefix('model.')} alone, without its {len(set(index.files.values()))} "
        f"shards: by {source}" + ("" if index.total_parameters is None else ", total_parameters"),
        NOT_KNOWN,
    ]
    return Totals(
        source=shown(path),
        params=index.total_parameters,
        stored_bytes=index.total_size,
        n_tensors=len(index.files),
        by_group={name: {"tensors": n} for name, n in sorted(groups.items())},
        by_dtype={},
        notes=tuple(notes),
    )


def _totals(
    path: str, tensors: Sequence[StoredTensor], *, params: int | None, notes: list[str]
) -> Totals:
    by_group: dict[str, Json] = {}
    by_dtype: dict[str, Json] = {}
    nothing = {"tensors": 0, "values": 0, "bytes": 0}
    for tensor in tensors:
        dtype, n_values = tensor.dtype, tensor.n_values
        group = by_group.setdefault(group_of(tensor.name), {**nothing, "dtypes": {}})
        group["dtypes"][dtype] = group["dtypes"].get(dtype, 0) + n_values
        for part in (group, by_dtype.setdefault(dtype, {**nothing})):
            part["tensors"] += 1
            part["values"] += n_values
            part["bytes"] += tensor.n_bytes
    return Totals(
        source=shown(path),
        params=params,
        stored_bytes=sum(tensor.n_bytes for tensor in tensors),
        n_tensors=len(tensors),
        by_group=dict(sorted(by_group.items(), key=lambda item: -item[1]["bytes"])),
        by_dtype=dict(sorted(by_dtype.items(), key=lambda item: -item[1]["bytes"])),
        notes=tuple(notes),
    )
