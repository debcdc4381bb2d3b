"""The process in which somebody's file is run: one job in, one answer out, both JSON.

The function's own output goes nowhere: the answer has a channel that it does not know.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

from metacount.judge.call import ask
from metacount.judge.vocabulary import Vocabulary
from metacount.resolve import InputError, shown
from metacount.spec import ModelSpec, Workload

MAX_MEMORY = 4 * 2**30  # bytes of data


def main() -> None:
    """Read a job from stdin, answer on what was stdout."""
    job = json.loads(sys.stdin.read())
    channel = os.dup(1)
    os.set_inheritable(channel, False)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    _limit_memory()
    try:
        answer = _answer(job)
    except InputError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"{job['name']}: ran out of memory"}
    with os.fdopen(channel, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os._exit(0)  # whatever threads it has left behind


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not every system has it
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_MEMORY if most == resource.RLIM_INFINITY else min(MAX_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    spec, workload = ModelSpec.from_dict(job["spec"]), Workload(**job["workload"])
    words = Vocabulary(spec, workload, job["quantity"], name=job["model"], config=job["config"])
    function = _load(job["file"], job["function"], job["name"])
    answer = ask(function, (spec, workload), words, job["name"])
    return {
        "text": answer.text,
        "value": str(answer.value),
        "notes": answer.notes,
        "cases": [_case(case, value) for case, value in answer.cases],
        "small": None if answer.small is None else _case(*answer.small),
    }


def _case(case: Any, value: Any) -> dict[str, Any]:
    return {"spec": case[0].to_dict(), "workload": case[1].to_dict(), "value": str(value)}


def _load(path: str, name: str, shown_as: str) -> Any:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("formula_file", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{shown_as}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["formula_file"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(
            f"{shown(path)}, line {error.lineno}: is not Python: {error.msg}"
        ) from None
    except MemoryError:
        raise
    except BaseException as error:
        raise InputError(f"{shown(path)}: raised {type(error).__name__} when it was loaded: "
                         f"{shown(error)}") from None  # fmt: skip
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if inspect_function(value)]
        remedy = f"it has {', '.join(known)}" if known else "it has no function"
        raise InputError(f"{shown(path)}: has no function '{shown(name)}'; {remedy}")
    return function


def inspect_function(value: object) -> bool:
    """Whether `value` is a function that the file itself defines."""
    return getattr(value, "__module__", None) == "formula_file" and callable(value)


if __name__ == "__main__":
    main()
