"""Rules on sizes read off the spec that has them, as comparisons and the messages it gives.

A spec is made of numbers that write down what they are compared with (`algebra.recorded`). For each
comparison a setting is looked for at which it comes out otherwise, the ones before it as they did.
Either the spec refuses that setting, and what it says is the rule's message, with the expressions
of its numbers; or it takes it, and goes on to other comparisons.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from metacount.algebra.recorded import CLOSE, OPEN, Recorded, names_in
from metacount.errors import SpecError
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from metacount.algebra.recorded import Log

    Make = Callable[[Mapping[str, int]], object]
    Asked = tuple[str, bool]

ELSEWHERE = "these forms are not of a setting where"
INSIDE = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
DRAWN = 150  # settings of several sizes that are tried for one comparison


@frozen
class Limits:
    """The least and the most that a size may be without another structure."""

    least: int
    most: int


@frozen
class Rule:
    """A comparison, how it comes out, and what follows where it comes out otherwise.

    That is a `message` of texts and, at odd places, expressions whose values stand there; or, where
    there is none, the rules that are asked instead of the ones after this.
    """

    test: str
    outcome: bool
    message: tuple[str, ...]
    otherwise: tuple[Rule, ...] = ()


def read_rules(
    make: Make, sizes: Mapping[str, int], limits: Mapping[str, Limits]
) -> tuple[Rule, ...]:
    """Read what `make` asks of `sizes`, which it takes, and of others that it would take.

    >>> def make(given):
    ...     if given["h"] % given["k"]:
    ...         raise SpecError("k", f"must divide {given['h']}", given["k"], "choose another")
    >>> any_size = Limits(least=1, most=99)
    >>> (rule,) = read_rules(make, {"h": 4, "k": 2}, {"h": any_size, "k": any_size})
    >>> rule.test, rule.outcome
    ('(h % k) != 0', False)
    >>> rule.message
    ('k must divide ', 'h', ': got ', 'k', '; choose another')
    """
    return _Reader(make, limits).rules(dict(sizes), 0)


def asked_by(ask: Make, sizes: Mapping[str, int]) -> tuple[Rule, ...]:
    """List what a formula asks of `sizes`: where an answer is another, so is the formula."""
    rules, _, _ = _asked(ask, sizes)
    return tuple(
        Rule(test=text, outcome=outcome, message=_elsewhere(text, outcome))
        for text, outcome in rules
        if names_in(text)
    )


def _elsewhere(text: str, outcome: bool) -> tuple[str, ...]:
    return (f"{ELSEWHERE} {text}" + (" does not hold" if outcome else ""),)


def _asked(
    make: Make, sizes: Mapping[str, int]
) -> tuple[list[Asked], list[tuple[int, int]], SpecError | None]:
    """Record what is asked at some sizes, each once,
    the numbers compared, and the error, if any.
    """
    log: Log = []
    wrong = None
    try:
        make({name: Recorded(size, name, log) for name, size in sizes.items()})
    except SpecError as error:
        wrong = error
    numbers_of = {(text, outcome): numbers for text, outcome, numbers in log}
    return list(numbers_of), list(numbers_of.values()), wrong


class _Reader:
    """Goes through the comparisons of one spec."""

    def __init__(self, make: Make, limits: Mapping[str, Limits]) -> None:
        self._make, self._limits = make, limits

    def rules(self, sizes: Mapping[str, int], start: int) -> tuple[Rule, ...]:
        """Read the rules along the way that `sizes` take, from the one of number `start` on."""
        texts, numbers, _ = _asked(self._make, sizes)
        return tuple(
            self._rule(sizes, texts[: i + 1], numbers[i])
            for i in range(start, len(texts))
            if names_in(texts[i][0])
        )

    def _rule(self, sizes: Mapping[str, int], way: list[Asked], numbers: tuple[int, int]) -> Rule:
        text, outcome = way[-1]
        turned = [*way[:-1], (text, not outcome)]
        errors: list[SpecError] = []
        for other in self._others(names_in(text), sizes, way, numbers):
            asked, _, error = _asked(self._make, other)
            if asked[: len(turned)] != turned:
                continue
            if error is None and self._has_other_structure(other):
                continue
            if error is None:
                return Rule(
                    test=text, outcome=outcome, message=(), otherwise=self.rules(other, len(turned))
                )
            errors.append(error)
            if len(errors) == 2:
                break
        message = _message(errors[0], errors[-1]) if errors else _elsewhere(text, outcome)
        return Rule(test=text, outcome=outcome, message=message)

    def _has_other_structure(self, sizes: Mapping[str, int]) -> bool:
        return any(size < self._limits[name].least for name, size in sizes.items())

    def _others(
        self,
        names: tuple[str, ...],
        sizes: Mapping[str, int],
        way: list[Asked],
        numbers: tuple[int, int],
    ) -> Iterator[dict[str, int]]:
        """Yield settings to try: one size another, then those that are asked of together, drawn."""
        near = [number + step for number in numbers for step in (-1, 0, 1)]
        for name in names:
            size, most = sizes[name], self._limits[name].most
            tried = (0, 1, 2, 3, size - 1, size + 1, 2 * size, size // 2, most, most + 1, *near)
            for value in dict.fromkeys(tried):
                if value >= 0 and value != size:
                    yield {**sizes, name: value}
        if len(names) < 2:
            return
        together = [names_in(text) for text, _ in way]
        related = sorted({name for group in together if {*group} & {*names} for name in group})
        draw = random.Random(len(way))
        for _ in range(DRAWN):
            drawn = {}
            for name in related:
                most, another = self._limits[name].most, sizes[draw.choice(related)]
                drawn[name] = draw.choice((1, 2, sizes[name], most, another))
            yield {**sizes, **drawn}


def _message(first: SpecError, other: SpecError) -> tuple[str, ...]:
    """Write the error's text; without a remedy that lists numbers of one setting alone."""
    remedy = f"; {first.remedy}" if first.remedy == other.remedy else ""
    return tuple(INSIDE.split(f"{first.field} {first.rule}: got {first.value}{remedy}"))
