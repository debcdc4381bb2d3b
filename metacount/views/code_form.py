"""A form read off code, as text, LaTeX, Python or data, in the config's own field names."""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import TYPE_CHECKING

from sympy import ceiling, floor, latex, symbols

from metacount import units
from metacount.algebra.writing import in_letters
from metacount.textbook.closed_form import readable
from metacount.tracing.domain import in_words
from metacount.tracing.symbols import SMALLEST
from metacount.views.formula import broken, free_name, meaning, upright, whole_python
from metacount.views.layout import WIDEST_TEXT, bold, columns, dim, paragraph, wrapped

if TYPE_CHECKING:
    import sympy

    from metacount.files import Json
    from metacount.tracing.layers import CodeForm

NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RUN_MEANINGS = {
    "B": "sequences",
    "S": "tokens of each sequence",
    "T": "positions that one token attends to",
    "S_e": "tokens that the encoder reads",
}


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
    for i, found in enumerate(expr.atoms(floor, ceiling)):
        above, below = found.args[0].as_numer_denom()
        divided = [
            in_letters(one) if one.is_Symbol or one.is_Integer else f"({in_letters(one)})"
            for one in (above, below)
        ]
        up = isinstance(found, ceiling)
        rounded[f"ROUNDED{i}X"] = f"⌈{'/'.join(divided)}⌉" if up else f"({'//'.join(divided)})"
        expr = expr.subs(found, symbols(f"ROUNDED{i}X", integer=True, positive=True))
    text = in_letters(expr)
    for name, shown in rounded.items():
        text = text.replace(name, shown)
    return text


def code_form_text(name: str, form: CodeForm) -> str:
    """Write each role, the layers it is made of, the domain, and how all that was found."""
    width = columns()
    lines = [bold(f"{name}: {form.quantity}, read off the code")]
    lines += [*wrapped(meaning(form.quantity), width), ""]
    label = max(map(len, (*form.by_role, "total")))
    for role, expr in form.by_role.items():
        lines += _part(f"{role:<{label}}", expr, form, width)
    if len(form.by_role) != 1:
        lines += _part(f"{'total':<{label}}", form.total, form, width)
    lines += ["", *_layers(form, width)]
    lines += _domain(form, width)
    for text in form.solved:
        lines += paragraph("solved", f"{text}: a number to the code", width)
    for note in form.notes:
        lines += paragraph("note  ", note, width)
    lines += paragraph("how   ", f"{form.how}; {form.source}", width)
    measured = f"at these sizes {units.exact(form.value)}, which was measured as well"
    if form.confirmed:
        measured += f", and so it was at {form.confirmed} others"
    if form.untried:
        measured += f"; no other number could be tried of {', '.join(form.untried)}"
    lines += paragraph("here  ", measured, width)
    lines += paragraph("sizes ", _numbers(form), width)
    return "\n".join(lines) + "\n"


def _part(label: str, expr: sympy.Expr, form: CodeForm, width: int) -> list[str]:
    indent = " " * (len(label) + 2)
    room = max(width - len(indent), 20)
    first, *rest = broken(in_fields(readable(expr)), room)
    value = expr.xreplace({s: n for s, n in _values(form).items() if s in expr.free_symbols})
    return [
        f"{bold(label)}  {first}",
        *(indent + line for line in rest),
        indent + dim(f"= {units.exact(int(value.doit()))}"),
    ]


def _values(form: CodeForm) -> dict[sympy.Expr, sympy.Expr]:
    from sympy import Integer

    return {letter: Integer(number) for letter, number in form.every_number.items()}


def _layers(form: CodeForm, width: int) -> list[str]:
    """Write each kind of layer and how many there are, with a line for each role in one layer."""
    lines = []
    where = ""
    label = max((len(part.role) for part in form.parts if part.layers is not None), default=0)
    for part in form.parts:
        if part.layers is None:
            continue
        if part.where != where:
            where = part.where
            count = in_fields(part.layers.expr)
            alike = f"{count} = {part.layers.count}" if part.layers.expr.free_symbols else count
            sure = (
                f", seen so at {part.layers.confirmed} other numbers of layers"
                if part.layers.confirmed
                else ""
            )
            text = f"{where}: {alike} alike{sure}; one has"
            lines += wrapped(text, width)
        indent = " " * (label + 4)
        first, *rest = broken(in_fields(readable(part.expr)), max(width - len(indent), 20))
        lines += [f"  {part.role:<{label}}  {first}", *(indent + line for line in rest)]
    return [*lines, ""] if lines else []


def _domain(form: CodeForm, width: int) -> list[str]:
    return paragraph("for   ", _holds_for(form), width)


def _holds_for(form: CodeForm) -> str:
    """Say in words for which sizes and lengths a form holds."""
    said = "; ".join(in_words(c, in_fields) for c in form.domain)
    if form.how.startswith("interpolated"):
        return f"lengths where {said}" if said else ""
    return f"sizes from {SMALLEST}" + (f", where {said}" if said else "")


def _numbers(form: CodeForm) -> str:
    return ", ".join(
        f"{name} {number}" + (f" ({RUN_MEANINGS[name]})" if name in RUN_MEANINGS else "")
        for name, number in form.numbers.items()
    )


def code_form_latex(name: str, form: CodeForm) -> str:
    """Write the roles and their sum as one `aligned` environment, fields in upright type."""
    known = {
        s: upright(s.name)
        for expr in form.by_role.values()
        for s in expr.free_symbols
        if s.name not in RUN_MEANINGS
    }
    lines = [f"% {name}: {form.quantity}, {form.how}; {form.source}"]
    if domain := _holds_for(form):
        lines.append(f"% for {domain}")
    lines.append(r"\begin{aligned}")
    for role, expr in form.by_role.items():
        shown = latex(readable(expr), symbol_names=known, mul_symbol="dot")
        lines.append(rf"{upright(role)} &= {shown} \\")
    parts = " + ".join(map(upright, form.by_role))
    lines.append(rf"{upright(form.quantity)} &= {parts or 0}")
    return "\n".join([*lines, r"\end{aligned}"]) + "\n"


def code_form_python(name: str, form: CodeForm) -> str:
    """Write a function of config fields; called without arguments it gives the model's count."""
    arguments = [f"    {_argument(n)}={number}," for n, number in form.numbers.items()]
    head = [
        f"def {form.quantity.replace(':', '_')}(",
        *(["    *,", *arguments] if arguments else []),
        "):",
    ]
    plain = name.replace("\\", "/").replace('"', "'")
    lines = [*head, f'    """{meaning(form.quantity)}: {plain}."""']
    if domain := _holds_for(form):
        lines += [f"    # {line}" for line in wrapped(f"for {domain}", WIDEST_TEXT - 6)]
    taken = {_argument(n) for n in form.numbers}
    names = []
    for role, expr in form.by_role.items():
        names.append(free_name(re.sub(r"\W", "_", role), taken))
        text = NAMES.sub(lambda found: _argument(found[0]), whole_python(expr))
        lines += [
            f"    {names[-1]} = (",
            *(f"        {part}" for part in wrapped(text, 88)),
            "    )",
        ]
    return "\n".join([*lines, f"    return {' + '.join(names) or 0}"]) + "\n"


def _argument(name: str) -> str:
    plain = name.replace(".", "__")
    return f"{plain}_" if iskeyword(plain) else plain


def code_form_data(model: str, name: str, form: CodeForm) -> Json:
    """Collect everything of a form as plain data."""
    return {
        "model": model,
        "name": name,
        "quantity": form.quantity,
        "definition": meaning(form.quantity),
        "split": form.split,
        "parts": {
            role: {"fields": in_fields(readable(expr)), "python": whole_python(expr)}
            for role, expr in form.by_role.items()
        },
        "layers": [
            {
                "role": part.role,
                "where": part.where,
                "each": in_fields(readable(part.expr)),
                "count": in_fields(part.layers.expr),
                "count_here": part.layers.count,
                "count_confirmed_at": part.layers.confirmed,
            }
            for part in form.parts
            if part.layers is not None
        ],
        "total": form.value,
        "numbers": form.numbers,
        "domain": [in_words(c, in_fields) for c in form.domain],
        "how": form.how,
        "confirmed_at": form.confirmed,
        "untried": list(form.untried),
        "solved_for": {letter: list(at) for letter, at in form.solved_for},
        "notes": list(form.notes),
        "source": form.source,
    }
