"""Keeps transformers' advice to people who run a model away from those who count it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Let somebody else's code run without its log and its warnings; what it raises is raised.

    Advice on speed, training and deprecation is meant. Whatever stands in the way of a count is an
    exception, and reaches the caller.
    """
    from logging import CRITICAL

    from transformers.utils import logging

    # asking transformers, not its logger: the first answer sets the logger up, and a level that
    # was read before that and put back later would undo it
    level = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
