"""A feed-forward of somebody's own: an expert with SwiGLU."""

from torch import Tensor, nn
from torch.nn import functional


class FFNExpert(nn.Module):
    """Three matrices without biases."""

    def __init__(self, hidden: int = 512, mid: int = 1536) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, mid, bias=False)
        self.gate = nn.Linear(hidden, mid, bias=False)
        self.down = nn.Linear(mid, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))
