"""Benchmarks of layers: what their variants do, how long they take, and what bounds them.

`work` says what must be computed and moved; `ffn`, `attention`, `mla`, `moe` and `norm` hold the
variants, as cases of `case`; `reference` is the float64 algebra that each is compared with.
`stopwatch` takes samples, `rounds` lets variants take turns, `statistics` makes medians and
intervals of them, `power` reads clocks and watts. `run` measures cases, `session` talks of it,
`saved` keeps rows.
"""
