"""The checkpoint that lies beside a config, and how its tensors become those of the module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.given import Source
from metacount.huggingface.checkpoint.compare import Convert
from metacount.huggingface.checkpoint.witness import (
    CheckpointReport,
    find_checkpoint,
    read_checkpoint,
)

if TYPE_CHECKING:
    from torch import nn


def checkpoint_of(source: Source, module: nn.Module) -> tuple[CheckpointReport, Convert] | None:
    """Read the checkpoint of a config's folder, repository or GGUF file; None without weights."""
    if source.gguf is not None:
        from metacount.huggingface.checkpoint.gguf import gguf_conversion, read_gguf

        stored, header = read_gguf(source.gguf)
        return stored, gguf_conversion(module, header)
    from metacount.huggingface.checkpoint.conversion import transformers_conversion

    if source.repository is not None:
        from metacount.huggingface.checkpoint.hub import read_repository

        return read_repository(source.repository), transformers_conversion(module)
    path = None if source.folder is None else find_checkpoint(source.folder)
    return None if path is None else (read_checkpoint(path), transformers_conversion(module))
