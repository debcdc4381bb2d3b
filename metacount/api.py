"""The Python API's questions about one model, in whatever form it is given."""

from __future__ import annotations

from metacount.errors import InputError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from metacount.resolve import Given
    from metacount.spec import Request, Workload
    from metacount.summary.shown import Flow
    from metacount.summary.summary import Summary
    from metacount.textbook.count import Count
    from metacount.verify.compare import Verification


def count(model: Given, workload: Workload | Request | None = None) -> Count:
    """Count a model: what MODEL is on the command line, a config as a dict, or a spec.

    Without a workload one sequence is run, of 2,048 tokens or of all the positions there are.

    >>> count("llama-7b").params
    6738415616
    >>> count({"model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16}).params
    354823168
    >>> count("bert-base").workload.seq_len
    512
    """
    from metacount.in_hand import check_size
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.count import count

    counted = count(model_of(model).spec, workload or Request())
    check_size(model, counted.params)
    return counted


def verify(model: Given, workload: Workload | Request | None = None) -> Verification:
    """Put every witness of a model's counts side by side; the forms of a model are `count`'s.

    A model that only transformers knows has one witness.

    >>> from metacount.spec import Workload
    >>> found = verify("llama-7b", Workload(seq_len=16))
    >>> found.agree, [witness.name for witness in found.witnesses]
    (True, ['formula', 'reference', 'published'])
    """
    from metacount.in_hand import check_size
    from metacount.resolve import any_of
    from metacount.spec import Request
    from metacount.verify.compare import verify_model

    found = verify_model(any_of(model), workload or Request())
    check_size(model, found.witnesses[0].figures["params"])
    return found


def flow(
    model: Given,
    workload: Workload | Request | None = None,
    *,
    decode: bool = False,
    reference: bool = False,
    inputs: Sequence[Any] = (),
    input_size: Any = None,
    dtype: Any = None,
) -> Flow:
    """Show a model's forward in execution order: every step with its equation, shapes and figures.

    `decode` runs one more token on a cache. Of a config, transformers' own module runs, or with
    `reference` ours. A module of somebody's own is run over `inputs`, or over an `input_size`.

    >>> found = flow("gpt2")
    >>> [step.name for step in found.steps], found.matmul_flops
    (['embed_tokens', 'decoder', 'lm_head'], 291648307200)
    """
    from metacount.summary.summary import ModelSummary, summary

    found = summary(model)
    given = {"input_size": input_size, "dtype": dtype} if input_size is not None else {}
    if isinstance(found, ModelSummary):
        if inputs or given or dtype is not None:
            raise InputError(f"{found.name} runs tokens: give a workload, no inputs and no sizes")
        return found.flow(workload, decode=decode, reference=reference)
    if reference:
        raise InputError(f"{found.name} has no spec, so there is no reference module")
    return found.flow(*inputs, **given, workload=workload, decode=decode)


def summary(given: Given) -> Summary:
    """Summarise what somebody has in hand, without touching it: a model in any form, or a module.

    An `nn.Module` is measured on a copy without values: no weight is moved, no mode is changed.

    >>> import torch
    >>> found = summary(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
    >>> found.params, found.flops(input_size=(3, 8)), found.by_role
    (212, 1152, None)
    >>> summary("mixtral-8x7b").active_params
    12879925248
    """
    from metacount.summary.summary import summary

    return summary(given)
