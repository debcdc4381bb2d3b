"""Whose error it is that ends a trace: of code that was run, or of ours that reads what it did."""

from __future__ import annotations

import os

import torch
import transformers

from metacount import modules
from metacount.errors import SpecError
from metacount.tracing.run.sizes import NotTraced

# Code that is read, and what it calls: an error with one of these files on its way is theirs.
READ = tuple(
    os.path.dirname(os.path.abspath(str(package.__file__)))
    for package in (transformers, modules, torch.nn, torch.autograd)
)


class OurError(RuntimeError):
    """An error in the tracing itself, where `As.strict` asked for it."""


def is_of_that_code(error: BaseException) -> bool:
    """Tell whether an error was raised in code that is only run here, or itself says what is wrong.

    >>> is_of_that_code(NotTraced("a number computed from data")), is_of_that_code(KeyError("S"))
    (True, False)
    """
    if isinstance(error, NotTraced | SpecError):
        return True
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(READ):
            return True
        frame = frame.tb_next
    return error.__cause__ is not None and is_of_that_code(error.__cause__)
