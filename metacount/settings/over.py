"""One model at several values of a size: what `--over FIELD=VALUE,VALUE,...` says."""

from __future__ import annotations

from metacount.errors import InputError, shown

MOST = 64  # models side by side


def each_setting(over: str) -> list[str]:
    """List the `FIELD=VALUE` texts that `--over` stands for;
    a comma in parentheses divides nothing.

    >>> each_setting("d_ff=1024,4*d_model,round_up(8/3*d, 256)")
    ['d_ff=1024', 'd_ff=4*d_model', 'd_ff=round_up(8/3*d, 256)']
    """
    name, equals, text = over.partition("=")
    values, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            values.append("")
        else:
            values[-1] += sign
    values = [value.strip() for value in values]
    if not equals or not all(values):
        raise InputError(f"--over needs FIELD=VALUE,VALUE,...: got '{shown(over)}'")
    if len(values) > MOST:
        raise InputError(f"--over takes at most {MOST} values: got {len(values)}")
    return [f"{name.strip()}={value}" for value in values]
