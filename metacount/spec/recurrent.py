"""What every mixer with a recurrent state has."""

from __future__ import annotations

from metacount.spec.field import part, size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    pass


@part
class Recurrent:
    """A mixer that keeps a state of constant size."""

    conv_kernel: int = size(
        "conv_kernel", "k_c", "positions that the causal convolution sees, itself included",
        "positions", "conv_L_cache conv1d_width")  # fmt: skip
