"""FILE.py:NAME in the place of MODEL: the whole command runs in a process of its own, with limits.

The process has those of `check`: so much memory, so many processes and files, an end after
--timeout. What it finds comes back as text; what the file prints goes nowhere.
"""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper

from metacount.errors import InputError, SpecError, printable
from metacount.resolve import Model, OwnModule, any_of, file_and_name
from metacount.spec import Request

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

INSTEAD = (
    "`metacount count` and `metacount tree` take it as it is, `metacount flow` and "
    "`metacount train` with --input SIZES"
)


class _Output(TextIOWrapper):
    """Stands for the stdout that the answer is written to, in another process."""

    def __init__(self, job: Json) -> None:
        super().__init__(BytesIO(), encoding=str(job["encoding"]))
        self._terminal = bool(job["terminal"])

    def isatty(self) -> bool:
        return self._terminal


def answered(job: Json) -> Json:
    """Run the command of a job, with modules in the place of their names."""
    from metacount.cli import parsed_arguments

    os.environ["COLUMNS"] = str(job["columns"])
    args = parsed_arguments(job["arguments"])
    device = getattr(args, "device", "meta")
    try:
        for name, value in vars(args).items():
            if isinstance(value, str) and value in args.modules:
                setattr(args, name, _loaded(value, device))
            elif name != "modules" and isinstance(value, list):
                setattr(args, name, [_loaded(v, device) if v in args.modules else v for v in value])
        with redirect_stdout(_Output(job)):
            text, code = args.run(args).written(args)
            written = text if isinstance(text, str) else "".join(text)
        return {"text": written, "code": code if isinstance(code, int) else code()}
    except SpecError as error:
        parts = {name: printable(getattr(error, name)) for name in ("field", "rule", "remedy")}
        return {**parts, "value": error.value if isinstance(error.value, int) else str(error.value)}


def _loaded(text: str, device: str) -> OwnModule:
    """Make the module that FILE.py:NAME names, and find the model that it is by its config."""
    from metacount.given import check_size, has_config
    from metacount.summary.modules import module_of
    from metacount.textbook.count import count

    named = file_and_name(text)
    assert named is not None
    module = module_of(*named, device)
    if not has_config(module):
        problem = f"{text}: a module without a config has no formula; {INSTEAD}"
        return OwnModule(id=text, module=module, model=None, problem=problem)
    try:
        model = any_of(module)
        if isinstance(model, Model):
            check_size(module, count(model.spec, Request()).params)
            model = Model(**{**vars(model), "id": text})
        return OwnModule(id=text, module=module, model=model)
    except (InputError, SpecError) as error:
        problem = f"{text}: {printable(error)}; {INSTEAD}"
        return OwnModule(id=text, module=module, model=None, problem=problem)


if __name__ == "__main__":
    from metacount.check.given.child import main

    main(answered)
