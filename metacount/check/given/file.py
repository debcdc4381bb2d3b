"""Loads somebody's Python file: it is run, as Python would run it."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

from metacount.errors import InputError, shown

NAME = "formula_file"  # of what is loaded, to itself


def loaded(path: str, shown_as: str) -> ModuleType:
    """Load a file as a module; what it raises, but for a `MemoryError`,
    becomes one line, an `InputError`.
    """
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{shown_as}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(
            f"{shown(path)}, line {error.lineno}: is not Python: {error.msg}"
        ) from None
    except MemoryError:
        raise
    except BaseException as error:
        raise InputError(
            f"{shown(path)}: raised {type(error).__name__} when it was loaded: {shown(error)}"
        ) from None
    return module
