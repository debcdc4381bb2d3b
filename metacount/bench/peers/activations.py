"""Other people's kernels for the gated activation, and the compiler's search: optional variants.

None of them is a dependency. Where one cannot be imported its row says what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch.nn.functional as F
from torch import Tensor, nn

AUTOTUNED = "max-autotune-no-cudagraphs"  # a mode of torch.compile

# way: the module it needs, and the package that holds it
PACKAGES = {
    "-liger": ("liger_kernel", "liger-kernel"),
    "-triton": ("triton", "triton"),
    "-fa3": (
        "flash_attn_interface",
        "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    ),
    "-flashinfer": ("flashinfer", "flashinfer-python"),
    "-flashmla": ("flash_mla", "git+https://github.com/deepseek-ai/FlashMLA"),
}


def missing(way: str) -> str | None:
    """Say what to install for a way to run, or None where it is here."""
    module, package = PACKAGES[way]
    return None if find_spec(module) is not None else f"pip install {package}"


class _Joined(nn.Module):
    """The weights of SwiGLU with gate and up in one matrix, gate first."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up_XD, down_DM


class LigerGated(_Joined):
    """Liger-Kernel's silu·up; it takes the halves as matrices of their own, so two products."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__(gate_up_XD, down_DM)
        if missing("-liger") is None:  # before anything is counted: the import runs operators
            import_module("liger_kernel.ops.swiglu")

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU with Liger-Kernel's silu·up: [N, D] -> [N, D]."""
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        gate, up = (F.linear(x_ND, half) for half in self.gate_up.chunk(2))
        y_ND: Tensor = F.linear(LigerSiLUMulFunction.apply(gate, up), self.down)
        return y_ND


class TritonGated(_Joined):
    """silu·up in one Triton kernel that reads the joined product as it lies."""

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU with silu·up in one Triton kernel: [N, D] -> [N, D]."""
        from metacount.bench.peers.triton_silu import silu_mul

        return F.linear(silu_mul(F.linear(x_ND, self.gate_up)), self.down)


FORWARD_ONLY = {"-triton": "its kernel has no backward"}

GATED_PEERS: dict[str, Callable[[nn.Parameter, nn.Parameter], nn.Module]] = {
    "-liger": LigerGated,
    "-triton": TritonGated,
}
