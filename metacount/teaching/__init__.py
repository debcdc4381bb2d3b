"""Statements, lessons and other people's formulas, each judged or shown by computing it.

`claims` holds well-known statements and judges them; `lessons` makes pages that teach; both write
their texts by `texts`, from templates in two languages, and run modules by `experiments`.
"""
