"""Clocks: samples that are times of the device alone, taken in turns, and what they say together.

`stopwatch` takes samples, `graphs` captures, `rounds` lets all variants take turns and decides when
to stop, `statistics` makes medians and intervals of it, `power` reads clocks and watts meanwhile.
"""
