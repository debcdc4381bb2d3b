"""One tensor as the header of a safetensors or GGUF file describes it."""

from __future__ import annotations

import math
from typing import NamedTuple

# Bits of one value, by safetensors' name of the type.
DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 8),
    **dict.fromkeys(("F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}

Shape = tuple[int, ...]


class StoredTensor(NamedTuple):
    """One tensor that a file holds; `block`: values and bytes of one block, where it has any."""

    name: str
    dtype: str
    shape: Shape
    file: str
    block: tuple[int, int] | None = None

    @property
    def n_values(self) -> int:
        """Values of `dtype`; a packed format keeps several logical values in one."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes in the file; the header was refused if they are no whole number."""
        if self.block is not None:
            return self.n_values // self.block[0] * self.block[1]
        return self.n_values * DTYPE_BITS[self.dtype] // 8
