"""Benchmarks of layers: what their variants do, how long they take, and what bounds them.

`layers` holds the variants, as cases of `case`, for the sizes of `grid`, which also estimates how
long they take; `reference` is the float64 algebra that each is compared with. `timing` takes
samples and lets variants take turns, `run` checks and measures cases and makes `rows`, which also
reads and writes them; `device` says what they were measured on.
"""
