"""Measures a training step on one device: what the backward computes and keeps, what a step holds.

The step really runs, on the meta device: forward, loss, autograd's backward, and a step of a real
`torch.optim` optimizer. One counter prices its operators, one ledger follows its storages.
"""

from __future__ import annotations
