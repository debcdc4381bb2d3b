"""The columns that `tree` can show, and what each says."""

from __future__ import annotations

# Every column that can be chosen, and what it says.
COLUMNS = {
    "shape": "[out, in] of a linear layer",
    "params": "of all copies",
    "one": "of one copy",
    "share": "of the first row's",
    "formula": "of one copy, from the textbook",
    "flops": "matmul_flops, of all copies",
    "active": "used for one token",
    "dtype": "of the tensors",
    "bytes": "of all copies",
}
DEFAULT = ("shape", "one", "params", "share")
LEFT = {"shape", "formula", "dtype"}  # the others are numbers, and stand to the right
