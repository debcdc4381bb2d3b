"""Expressions as a reader wants them: broken into lines, in Python, in a config's fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sympy import ceiling, floor, symbols, together
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from metacount.algebra.text import in_letters
from metacount.cli.report import wrapped
from metacount.figures import FIGURES

if TYPE_CHECKING:
    import sympy

    from metacount.textbook.closed_form import ClosedForm

GLUE = "\0"
LETTERS = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # \w would take the ² of d² along
WAYS = {
    "flash": "fused attention",
    "sdpa": "attention by the kernel of torch's CPU",
    "full": "full checkpointing",
    "selective": "selective checkpointing",
    "sgd": "SGD",
    "sgd-momentum": "SGD with momentum",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
    "muon": "Muon, AdamW where it does not apply",
    "adam8bit": "AdamW in 8 bits, as torchao keeps it",
}


def meaning(quantity: str) -> str:
    """Put a quantity in words; the ways to train that its name adds, too.

    >>> meaning("activation_bytes:full")
    'bytes of distinct storages that autograd keeps for the backward, full checkpointing'
    """
    name, *ways = quantity.split(":")
    return ", ".join([FIGURES[name].meaning, *(WAYS.get(way, way) for way in ways)])


class _Python(StrPrinter):
    """Expressions of whole numbers as Python that stays in whole numbers."""

    def _print_floor(self, expr: sympy.Expr) -> str:
        return f"({self._quotient(*expr.args[0].as_numer_denom())})"

    def _print_ceiling(self, expr: sympy.Expr) -> str:
        # its own brackets: a minus before a power would be of the power
        return f"(-(-{self._quotient(*expr.args[0].as_numer_denom())}))"

    def _quotient(self, above: sympy.Expr, below: sympy.Expr, sign: str = "//") -> str:
        """Write a quotient rounded down; unbracketed, a product's first factor divides alone."""
        upper = self.parenthesize(above, PRECEDENCE["Mul"])
        return f"{upper} {sign} {self.parenthesize(below, PRECEDENCE['Pow'])}"

    def _print_Mod(self, expr: sympy.Expr) -> str:
        above, below = expr.args
        return f"({self._quotient(above, below, '%')})"

    def _print_Min(self, expr: sympy.Expr) -> str:
        return f"min({', '.join(self._print(arg) for arg in expr.args)})"

    def _print_Max(self, expr: sympy.Expr) -> str:
        return f"max({', '.join(self._print(arg) for arg in expr.args)})"


def broken(formula: str, width: int) -> list[str]:
    """Break a formula into lines of at most `width`; a line begins with the operator it broke at.

    Operators inside parentheses are broken at only where the outer ones leave a line too long.
    """
    deepest = formula.count("(")
    for depth in range(1, deepest + 2):
        lines = wrapped(_glued(formula, depth), width)
        if max(map(len, lines)) <= width or depth > deepest:
            break
    return [line.replace(GLUE, " ") for line in lines]


def _glued(formula: str, depth: int) -> str:
    """Replace the spaces of `formula` except before operators in fewer than `depth` parentheses."""
    out: list[str] = []
    level = 0
    for i, char in enumerate(formula):
        level += (char == "(") - (char == ")")
        breakable = char != " " or (formula[i + 1] in "+-=" and level < depth)
        out.append(char if breakable else GLUE)
    return "".join(out)


def upright(name: str) -> str:
    r"""Write a name of several letters in LaTeX; a hyphen would be a minus in mathematics.

    >>> upright("hidden_size"), upright("self-attention")
    ('\\mathrm{hidden\\_size}', '\\text{self-attention}')
    """
    plain = name.replace("_", r"\_")
    return rf"\text{{{plain}}}" if "-" in name else rf"\mathrm{{{plain}}}"


def in_python(expr: sympy.Expr, form: ClosedForm) -> str:
    """Write an expression as Python in our names, whole numbers throughout.

    A half of a whole expression is exact: what is divided is known to be even.
    """
    names = {term.letter: term.name for term in form.terms}
    return LETTERS.sub(lambda letter: names.get(letter[0], letter[0]), whole_python(expr))


def whole_python(expr: sympy.Expr) -> str:
    """Write an expression as Python in whole numbers: what is divided is known to be exact."""
    above, below = together(expr).as_numer_denom()
    text = str(_Python().doprint(above))
    return text if below == 1 else f"({text}) // ({_Python().doprint(below)})"


def in_fields(expr: sympy.Expr) -> str:
    """Write an expression in the names of fields; a rounded-down quotient as Python writes it, one
    that is rounded up between brackets.

    >>> import sympy
    >>> n = sympy.Symbol("num_layers", integer=True, positive=True)
    >>> in_fields(n * 2 - sympy.floor(n / 4))
    '-(num_layers//4) + 2·num_layers'
    >>> in_fields(n * sympy.ceiling(n / 4))
    '⌈num_layers/4⌉·num_layers'
    >>> in_fields(sympy.floor(n / (4 * sympy.Symbol("step", integer=True, positive=True))))
    '(num_layers//(4·step))'
    """
    rounded = {}
    for i, rounding in enumerate(expr.atoms(floor, ceiling)):
        above, below = rounding.args[0].as_numer_denom()
        divided = [
            in_letters(term) if term.is_Symbol or term.is_Integer else f"({in_letters(term)})"
            for term in (above, below)
        ]
        up = isinstance(rounding, ceiling)
        rounded[f"ROUNDED{i}X"] = f"⌈{'/'.join(divided)}⌉" if up else f"({'//'.join(divided)})"
        expr = expr.subs(rounding, symbols(f"ROUNDED{i}X", integer=True, positive=True))
    text = in_letters(expr)
    for name, shown in rounded.items():
        text = text.replace(name, shown)
    return text
