"""A closed form as text, LaTeX, Python or data: letters first, then numbers put in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sympy import latex, together
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from metacount import units
from metacount.algebra.writing import in_letters
from metacount.figures import FIGURES
from metacount.textbook.closed_form import readable
from metacount.textbook.count import ALL_POSITIONS
from metacount.views.layout import WIDEST_TEXT, bold, columns, dim, noted_table, wrapped

if TYPE_CHECKING:
    from collections.abc import Container

    import sympy

    from metacount.files import Json
    from metacount.resolve import Model
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


def formula_text(model: Model, form: ClosedForm) -> str:
    """Write each part in letters and in numbers, then the total, then the legend."""
    width = columns()
    lines = [bold(f"{model.name}: {form.quantity}"), *wrapped(meaning(form.quantity), width), ""]
    label = max(len(part) for part in (*form.parts, "total"))
    for part, expr in form.parts.items():
        lines += _part(f"{part:<{label}}", in_letters(expr), form, form.values[part], width)
    if not form.parts:
        return "\n".join([*lines, f"{bold('total')}  0, whatever the sizes"]) + "\n"
    if len(form.parts) > 1:
        total = in_letters(readable(sum(form.parts.values())))
        lines += _part(f"{'total':<{label}}", total, form, form.total, width)
    return "\n".join([*lines, "", *_legend(model, form, width)]) + "\n"


def _part(label: str, letters: str, form: ClosedForm, value: int, width: int) -> list[str]:
    indent = " " * (len(label) + 2)
    room = max(width - len(indent), 20)
    first, *rest = broken(letters, room)
    numbers = broken(f"{_with_numbers(letters, form)} = {units.exact(value)}", room)
    return [
        f"{bold(label)}  {first}",
        *(indent + line for line in rest),
        *(indent + dim(line) for line in numbers),
    ]


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


def _with_numbers(letters: str, form: ClosedForm) -> str:
    """Put each letter's number in its place in the letters' text: both then read the same way."""
    return LETTERS.sub(lambda name: str(form.numbers.get(name[0], name[0])), letters)


def _legend(model: Model, form: ClosedForm, width: int) -> list[str]:
    everything = {"seq_len": model.spec.longest}
    rows = []
    for term in form.terms:
        n = form.numbers[term.letter]
        said = f" ({ALL_POSITIONS})" if n == everything.get(term.name) else ""
        rows.append((term.letter, term.name, units.exact(n), term.meaning + said))
    return noted_table(("letter", "name", "here", "meaning"), rows, "<<>", width) if rows else []


def latex_text(model: Model, form: ClosedForm) -> str:
    """Write the parts and their sum as one `aligned` environment, with the legend as comments."""
    lines = [f"% {model.name}: {form.quantity}"]
    for term in form.terms:
        lines.append(f"% {term.letter} = {form.numbers[term.letter]}: {term.name}, {term.meaning}")
    lines.append(r"\begin{aligned}")
    for part, expr in form.parts.items():
        lines.append(rf"{upright(part)} &= {latex(expr)} = {_grouped(form.values[part])} \\")
    parts = " + ".join(map(upright, form.parts))
    lines.append(rf"{upright(form.quantity)} &= {parts or 0} = {_grouped(form.total)}")
    return "\n".join([*lines, r"\end{aligned}"]) + "\n"


def upright(name: str) -> str:
    r"""Write a name of several letters in LaTeX; a hyphen would be a minus in mathematics.

    >>> upright("hidden_size"), upright("self-attention")
    ('\\mathrm{hidden\\_size}', '\\text{self-attention}')
    """
    plain = name.replace("_", r"\_")
    return rf"\text{{{plain}}}" if "-" in name else rf"\mathrm{{{plain}}}"


def _grouped(value: int) -> str:
    return units.exact(value).replace(",", r"\,")


def python_text(model: Model, form: ClosedForm) -> str:
    """Write a function of the model's sizes; called without arguments it gives the count."""
    arguments = ", ".join(f"{t.name}={form.numbers[t.letter]}" for t in form.terms)
    name = form.quantity.replace(":", "_")
    lines = [f"def {name}({'*, ' if arguments else ''}{arguments}):"]
    if len(lines[0]) > WIDEST_TEXT:
        each = [f"    {t.name}={form.numbers[t.letter]},  # {t.meaning}" for t in form.terms]
        lines = [f"def {name}(", "    *,", *each, "):"]
    said = meaning(form.quantity)
    lines.append(f'    """{said[0].upper()}{said[1:]}: {_plain(model.name)}."""')
    names = []
    for part, expr in form.parts.items():
        names.append(free_name(part.replace("-", "_"), {t.name for t in form.terms}))
        lines += _assignment(names[-1], in_python(expr, form))
    return "\n".join([*lines, f"    return {' + '.join(names) or 0}"]) + "\n"


def free_name(name: str, taken: Container[str]) -> str:
    """Find a name for a part that is no argument's: assigning it would change what the rest reads.

    >>> free_name("norm", {"d"}), free_name("norm", {"norm"})
    ('norm', 'norm_')
    """
    while name in taken:
        name += "_"
    return name


def _assignment(name: str, value: str) -> list[str]:
    line = f"    {name} = {value}"
    if len(line) <= WIDEST_TEXT:
        return [line]
    return [f"    {name} = (", *(f"        {part}" for part in broken(value, 88)), "    )"]


def _plain(name: str) -> str:
    """Write a model's name so that it cannot end the docstring it stands in."""
    return name.replace("\\", "/").replace('"', "'")


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


def formula_data(model: Model, form: ClosedForm) -> Json:
    """Collect every spelling of every part, the legend, the values."""
    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes,
        "quantity": form.quantity,
        "definition": meaning(form.quantity),
        "parts": {
            part: {
                "letters": in_letters(expr),
                "python": in_python(expr, form),
                "latex": latex(expr),
                "value": form.values[part],
            }
            for part, expr in form.parts.items()
        },
        "total": form.total,
        "legend": [
            {
                "letter": term.letter,
                "name": term.name,
                "meaning": term.meaning,
                "unit": term.unit,
                "value": form.numbers[term.letter],
            }
            for term in form.terms
        ],
        "source": "formula",
    }
