"""Twenty modules that nobody here wrote for counting: each with what its forward is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


class InvertedResidual(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        wide = width * expansion
        self.expand = nn.Conv2d(width, wide, 1, bias=False)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, 4, 1),
            nn.SiLU(),
            nn.Conv2d(4, wide, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Conv2d(wide, width, 1, bias=False)
        self.act = nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.depthwise(self.act(self.expand(x))))
        return x + self.project(y * self.squeeze(y))


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.first = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.zeros(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.head(self.blocks(x)[:, 0])


class Reader(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.cells = kind(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cells(self.table(ids))[0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)])
        self.middle = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16))
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(16, 8, 2, stride=2), nn.ConvTranspose2d(8, 3, 2, stride=2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.down:
            kept.append(nn.functional.max_pool2d(layer(kept[-1]).relu(), 2))
        y = self.middle(kept[-1])
        for layer, skipped in zip(self.up, kept[-2::-1], strict=True):
            y = layer(y) + skipped
        return y


class Tied(nn.Module):
    """One table twice, and one layer called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = x + self.layer(x)
        return self.head(x)


class Cached(nn.Module):
    """Makes a table when it is first asked for it, and counts how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.angles: Tensor | None = None
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.angles is None or len(self.angles) < x.shape[1]:
            self.angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None].expand(-1, 8).sin()
        self.runs += 1
        return self.layer(x + self.angles)


TINY: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "bert": {},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "mamba": {"state_size": 4},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_head": 4, "n_layer": 2},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8},
    "albert": {"embedding_size": 16},
}
COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def transformers_model(kind: str) -> nn.Module:
    """A small instance on the CPU, with weights."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **TINY[kind]})
    chosen = {
        "bert": "AutoModelForMaskedLM",
        "albert": "AutoModelForMaskedLM",
        "t5": "AutoModelForSeq2SeqLM",
    }.get(kind, "AutoModelForCausalLM")
    model: nn.Module = getattr(transformers, chosen).from_config(config)
    return model


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]

OWN: dict[str, Case] = {
    "conv net": (ConvNet, lambda: (torch.rand(2, 3, 16, 16),)),
    "inverted residual": (lambda: InvertedResidual(8, 4), lambda: (torch.rand(2, 8, 10, 10),)),
    "vision transformer": (Vision, lambda: (torch.rand(2, 3, 32, 32),)),
    "lstm": (lambda: Reader(nn.LSTM), lambda: (ids(2, 7),)),
    "gru": (lambda: Reader(nn.GRU), lambda: (ids(2, 7),)),
    "u-net": (UNet, lambda: (torch.rand(2, 3, 16, 16),)),
    "nn.Transformer": (
        lambda: nn.Transformer(16, 2, 2, 2, 32, batch_first=True),
        lambda: (torch.rand(2, 5, 16), torch.rand(2, 7, 16)),
    ),
    "nn.TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3),
        lambda: (torch.rand(2, 5, 16),),
    ),
    "tied weights": (Tied, lambda: (ids(2, 7),)),
    "lazily made cache": (Cached, lambda: (torch.rand(2, 5, 8),)),
}
