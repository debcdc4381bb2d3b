"""Forward benchmarks: what a layer's variants do, how long they take, and what bounds them.

`work` says what must be computed and moved, `layers` holds the variants, `reference` the float64
algebra that each is compared with, `clocks` times; `run` puts them together, `session` talks of it.
"""
