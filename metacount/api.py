"""The Python API's questions about one model, in whatever form it is given."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.resolve import Given, Model
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
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.count import count

    return count(model_of(model).spec, workload or Request())


def like(name: str, **sizes: Any) -> Model:
    """Make a model like one of the catalog, or of a family, at other sizes.

    Sizes that are not given keep their ratios to d_model, to n_heads and to n_layers.

    >>> small = like("llama", d_model=256, n_layers=4)
    >>> small.spec.n_heads, small.spec.d_ff, count(small).params
    (2, 688, 19548416)
    """
    from metacount.resolve import LIKE, find_model

    return find_model(
        LIKE + name, [f"{field}={str(size).lower()}" for field, size in sizes.items()]
    )


def verify(model: Given, workload: Workload | Request | None = None) -> Verification:
    """Put every witness of a model's counts side by side; the forms of a model are `count`'s.

    A model that only transformers knows has one witness.

    >>> from metacount.spec import Workload
    >>> found = verify("llama-7b", Workload(seq_len=16))
    >>> found.agree, [witness.name for witness in found.witnesses]
    (True, ['formula', 'reference', 'published'])
    """
    from metacount.resolve import any_of
    from metacount.spec import Request
    from metacount.verify.compare import verify_model

    return verify_model(any_of(model), workload or Request())


def flow(
    model: Given,
    workload: Workload | Request | None = None,
    *,
    decode: bool = False,
    reference: bool = False,
) -> Flow:
    """Show a model's forward in execution order: every step with its equation, shapes and figures.

    `decode` runs one more token on a cache. Of a config, transformers' own module runs, or with
    `reference` ours.

    >>> found = flow("gpt2")
    >>> [step.name for step in found.steps], found.matmul_flops
    (['embed_tokens', 'decoder', 'lm_head'], 291648307200)
    """
    from metacount.flow.run import flow
    from metacount.summary.shown import Flow

    return Flow(**vars(flow(model, workload, decode=decode, reference=reference)))


def summary(given: Given) -> Summary:
    """Summarise what somebody has in hand, without touching it: a model in any form, or a module.

    An `nn.Module` is measured on a copy without values: no weight is moved, no mode is changed.

    >>> import torch
    >>> found = summary(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
    >>> found.params, found.flops(input_size=(3, 8)), found.by_role
    (212, 1152, None)
    >>> summary("mixtral-8x7b").active_params
    12879425536
    """
    from metacount.summary.summary import summary

    return summary(given)
