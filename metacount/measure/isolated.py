"""The door through which a caller's process comes in: its settings do not reach a measurement."""

from __future__ import annotations

import os
import sys
from functools import wraps

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


LEFT_IN_ENVIRON = "TORCHINDUCTOR_CACHE_DIR"  # what torch's compiler sets when it is imported


def isolated(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function measure as if the caller had set nothing in torch, one at a time.

    Where nobody has imported torch nothing is set in it, and the function may do without.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        was_there = LEFT_IN_ENVIRON in os.environ
        try:
            if "torch" not in sys.modules:
                return function(*args, **kwargs)
            from metacount.measure.torch_private import measuring

            with measuring():
                return function(*args, **kwargs)
        finally:
            if not was_there:
                os.environ.pop(LEFT_IN_ENVIRON, None)

    return run
