"""Keeps transformers' advice to people who run a model away from those who count it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent() -> Iterator[None]:
    """Keep logs and warnings of an import back; what it raises is raised.

    transformers imports optional libraries where they are installed; what these have to say, of
    kernels that this machine cannot load, is of no count.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Let somebody else's code run without its log and its warnings; what it raises is raised.

    Advice on speed, training and deprecation is meant. Whatever stands in the way of a count is an
    exception, and reaches the caller.
    """
    from transformers.utils import logging as theirs

    # asking transformers, not its logger: the first answer sets the logger up, and a level that
    # was read before that and put back later would undo it
    level = theirs.get_verbosity()
    theirs.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        theirs.set_verbosity(level)
