"""The arguments of somebody's function, named in anybody's spelling, as sizes of a model."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from metacount.algebra.exact import value_at
from metacount.check.given.spellings import structure_of
from metacount.check.given.vocabulary import Vocabulary, numbers_of
from metacount.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sympy

    from metacount.check.given.letters import Letter, Session
    from metacount.check.trials import Case

OBJECTS = ("config", "cfg", "spec", "args", "hparams", "model_config")


class Arguments:
    """The arguments of a function: letters, or the numbers of a case."""

    def __init__(self, function: Callable[..., object], words: Vocabulary, name: str) -> None:
        self.words, self.notes = words, list[str]()
        self.fixed: dict[str, object] = {}
        self.object: str | None = None
        self.known: dict[str, object] = {}  # what names asked of the object mean
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise InputError(f"{name}: its arguments cannot be seen; write it in Python") from None
        wanted = []
        for argument in parameters.values():
            optional = argument.default is not argument.empty
            if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                continue
            if argument.kind is argument.POSITIONAL_ONLY:
                raise InputError(
                    f"{name}: {argument.name} can only be given by position; leave the / out"
                )
            if argument.name in OBJECTS and not optional:
                if self.object is not None:
                    raise InputError(
                        f"{name}: takes two objects, {self.object} and "
                        f"{argument.name}; one is enough"
                    )
                self.object = argument.name
            elif words.knows(argument.name):
                wanted.append((argument.name, optional, argument.default))
            elif (found := self.structure(argument.name)) is not None:
                self.fixed[argument.name] = found[0]
            elif optional:
                self.notes.append(f"{argument.name} keeps its default, {shown(argument.default)}")
            else:
                self._unknown(argument.name, name)
        self.sizes = self._sizes(wanted, name)
        self.notes += words.notes

    def _unknown(self, argument: str, name: str) -> None:
        try:
            self.words.meanings([argument])
        except InputError as error:
            raise InputError(f"{name}: the argument {error}") from None

    def _sizes(self, wanted: list[tuple[str, bool, object]], name: str) -> dict[str, object]:
        found, names = {}, [argument for argument, _, _ in wanted]
        for argument, optional, default in wanted:
            try:
                # all names together: what one of them means may settle another
                found[argument] = self.words.meanings([*names])[argument]
            except InputError:
                try:
                    found[argument] = self.words.meanings([argument])[argument]
                except InputError as error:
                    if not optional:
                        raise InputError(f"{name}: the argument {error}") from None
                    self.note(f"{argument} keeps its default, {shown(default)}")
        return found

    def structure(self, name: str) -> tuple[object] | None:
        """Look up what is no size: a key of the model's own config, or a field of its spec."""
        if name in self.words.config and not self.words.knows(name):
            return (self.words.config[name],)
        found = structure_of(self.words.spec, name)
        biases = [b for b in "qkvo" if getattr(self.words.spec, f"{b}_bias")]
        if found is not None and "bias" in name and 0 < len(biases) < 4:
            self.note(
                f"{name} is given as {found[0]}: {self.words.model} has biases on "
                f"{', '.join(biases)} only"
            )
        return found

    def note(self, text: str) -> None:
        """Remember something worth saying, once."""
        if text not in self.notes:
            self.notes.append(text)

    def in_letters(self, session: Session) -> dict[str, object]:
        """Return the arguments as letters; what is fixed by structure is a number."""

        def letter(expr: sympy.Expr) -> int | Letter:
            return int(expr) if expr.is_Integer else session.letter(str(expr))

        return self._arguments(letter)

    def at(self, case: Case) -> dict[str, object]:
        """Return the arguments as the numbers of `case`."""
        numbers = numbers_of(*case)
        return self._arguments(lambda expr: int(value_at(expr, numbers)))

    def _arguments(self, of: Callable[[sympy.Expr], object]) -> dict[str, object]:
        given = {argument: of(expr) for argument, expr in self.sizes.items()}
        given.update(self.fixed)
        if self.object is not None:
            given[self.object] = _object(self, of)
        return given

    def used(self) -> set[sympy.Symbol]:
        """Return the letters of all sizes that the function was given or has asked for."""
        exprs = [*self.sizes.values(), *self.known.values()]
        return {a for expr in exprs for a in getattr(expr, "free_symbols", ())}

    def asked(self, name: str) -> object:
        """Return what the object means by `name`:
        an expression, or a 1-tuple of what is no size.
        """
        if name not in self.known:
            self.known[name] = self._meaning(name)
        return self.known[name]

    def _meaning(self, name: str) -> object:
        words = self.words
        if not words.knows(name):
            found = self.structure(name)
            if found is not None:
                return found
        try:
            meaning = words.meanings([name])[name]
        except InputError as error:
            if not words.knows(name):
                self.note(
                    f"the function asks for {shown(name)}, which is not known here: where it "
                    "has a default of its own, that is taken"
                )
            return error
        for note in words.notes:
            self.note(note)
        return meaning


def _object(arguments: Arguments, of: Callable[[sympy.Expr], object]) -> object:
    """Build a config: sizes as attributes and as items, under any spelling.

    What it holds lies in this call's frame, where the function cannot look.
    """

    def size(name: object) -> object:
        if not isinstance(name, str):
            raise KeyError(name)
        found = arguments.asked(name)
        if isinstance(found, InputError):
            raise KeyError(str(found))
        return found[0] if isinstance(found, tuple) else of(found)

    class Config:
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            if name == "get":
                return get
            if name == "__class__":
                return Config
            try:
                return size(name)
            except KeyError as error:
                raise AttributeError(error.args[0]) from None

        def __getitem__(self, name: str) -> object:
            return size(name)

        def __contains__(self, name: str) -> bool:
            return has(name)

        def __iter__(self) -> Iterator[str]:
            raise TypeError("its sizes have many spellings: ask for one by name")

    def has(name: str) -> bool:
        try:
            size(name)
        except KeyError:
            return False
        return True

    def get(name: str, default: object = None) -> object:
        """Return the size `name`, or `default` where the model has none."""
        try:
            return size(name)
        except KeyError:
            return default

    return Config()
