"""Benchmarks of layers: what their variants do, how long they take, and what bounds them.

`ffn`, `attention`, `mla`, `moe` and `norm` hold the variants, as cases of `case`, for the sizes of
`grid`; `reference` is the float64 algebra that each is compared with, `work` what must be computed
and moved. `timing` takes samples and lets variants take turns, `run` measures cases and makes
`rows`; `device` and `ceiling` say what they were measured on, `estimate` how long it will take,
`saved` keeps rows.
"""
