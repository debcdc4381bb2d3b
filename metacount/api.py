"""The Python API's questions about one model, in whatever form it is given."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen
from metacount.measure.isolated import isolated

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeAlias, TypedDict, Unpack

    from torch import Tensor, nn

    from metacount.diff.compared import Diff
    from metacount.files import Json
    from metacount.flow.result import Flow
    from metacount.measure.node import Node
    from metacount.resolve import Given, Model, TransformersOnly
    from metacount.spec import Request, Workload
    from metacount.summary.summary import Summary
    from metacount.textbook.count import Count
    from metacount.textbook.training import TrainingCount
    from metacount.training.setup import Setup
    from metacount.verify.compare import Verification
    from metacount.verify.subject import Subject

    Outputs: TypeAlias = dict[str, list[list[int]]]  # shapes of what modules give, by path

    class Sizes(TypedDict, total=False):
        """Sizes of a run, as keywords: `SIZES`."""

        batch_size: int
        seq_len: int
        dtype: str
        source_len: int
        prefix_len: int

    Made: TypeAlias = tuple[Node, str, str | Workload, Outputs]

SIZES = ("batch_size", "seq_len", "dtype", "source_len", "prefix_len")


def _request(
    function: str, workload: Workload | Request | None, sizes: Mapping[str, Any]
) -> Workload | Request:
    """Read what is to be run: a workload, or its sizes as keywords; not both."""
    from metacount.spec import Request

    for name in sizes:
        if name not in SIZES:
            close = nearest(name, SIZES, f"it takes {', '.join(SIZES)}")
            raise TypeError(f"{function}() takes no '{shown(name)}'; {close}")
    if workload is not None and sizes:
        raise InputError(f"give {function}() a workload or {', '.join(sizes)}, not both")
    return workload or Request(**sizes)


def count(
    model: Given, workload: Workload | Request | None = None, **sizes: Unpack[Sizes]
) -> Count:
    """Count a model: what MODEL is on the command line, a config as a dict, or a spec.

    Without a workload one sequence is run, of 2,048 tokens or of all the positions there are. The
    result's `notes` are on the config: the class it stands for, why transformers refuses it.
    `sizes` are those of a workload: batch_size, seq_len, dtype, source_len, prefix_len.

    >>> count("llama-7b").params
    6738415616
    >>> count({"model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16}).params
    354823168
    >>> count("bert-base").workload.seq_len
    512
    >>> count("llama-7b", seq_len=8192, batch_size=2).kv_cache_bytes
    8589934592
    """
    from metacount.given import check_size
    from metacount.resolve import model_of
    from metacount.textbook.count import count

    given = model_of(model)
    run = _request("count", workload, sizes)
    counted = count(given.spec, run, notes=given.notes, quantised=given.quantised)
    check_size(model, counted.params)
    return counted


def count_training(
    model: Given, workload: Workload | Request | None = None, setup: Setup | None = None
) -> TrainingCount:
    """Count one training step of a model by formulas alone, without torch; `train` measures it.

    What has no formula is None, and `uncovered` says why.

    >>> step = count_training("llama-7b")
    >>> step.backward_matmul_flops, step.activation_bytes, step.optimizer_bytes
    (58523224375296, 39605280772, 26953663628)
    """
    from metacount.formulas.model import params
    from metacount.given import check_size
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.count import fitted
    from metacount.textbook.training import count_step
    from metacount.training.setup import Setup, check_dtypes

    spec, chosen = model_of(model).spec, setup or Setup()
    run = fitted(spec, workload or Request())
    check_dtypes(chosen, run.dtype)
    step = count_step(spec, run, chosen)
    check_size(model, params(spec))  # a sum over what the step has recorded
    return step


def like(name: str, **sizes: object) -> Model:
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


@isolated
def verify(
    model: Given, workload: Workload | Request | None = None, **sizes: Unpack[Sizes]
) -> Verification:
    """Put every witness of a model's counts side by side; the forms of a model are `count`'s.

    A model that only transformers knows has one witness.

    >>> from metacount.spec import Workload
    >>> found = verify("llama-7b", Workload(seq_len=16))
    >>> found.agree, [witness.name for witness in found.witnesses]
    (True, ['formula', 'reference', 'published'])
    """
    from metacount.given import check_size
    from metacount.resolve import any_of
    from metacount.verify.compare import verify_model

    result = verify_model(any_of(model), _request("verify", workload, sizes))
    check_size(model, result.witnesses[0].figures["params"])
    return result


@isolated
def flow(
    model: Given,
    workload: Workload | Request | None = None,
    *,
    decode: bool = False,
    reference: bool = False,
    inputs: Sequence[object] = (),
    input_size: object = None,
    dtype: object = None,
) -> Flow:
    """Show a model's forward in execution order: every step with its equation, shapes and figures.

    `decode` runs one more token on a cache. Of a config, transformers' own module runs, or with
    `reference` ours. A module of somebody's own is run over `inputs`, or over an `input_size`.

    >>> found = flow("gpt2")
    >>> [step.name for step in found.steps], found.matmul_flops
    (['embed_tokens', 'decoder', 'lm_head'], 291648307200)
    """
    from metacount.summary.summary import ModelSummary, summary

    result = summary(model)
    given = {"input_size": input_size, "dtype": dtype} if input_size is not None else {}
    if isinstance(result, ModelSummary):
        if inputs or given or dtype is not None:
            raise InputError(f"{result.name} runs tokens: give a workload, no inputs and no sizes")
        return result.flow(workload, decode=decode, reference=reference)
    if reference:
        raise InputError(f"{result.name} has no spec, so there is no reference module")
    return result.flow(*inputs, **given, workload=workload, decode=decode)


@isolated
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


@isolated
def diff(
    a: Given, b: Given, workload: Workload | Request | None = None, **sizes: Unpack[Sizes]
) -> Diff:
    """Compare two models part by part; by role where one of them has no formula.

    Where no length is asked for, both run as many tokens as both have positions for.

    >>> found = diff("llama2-70b", "llama-7b")
    >>> found.row("attention").status, found.row("attention").a.described
    ('resized', 'GQA 64/8')
    """
    from metacount.resolve import Model, any_of
    from metacount.spec import Request

    request = _request("diff", workload, sizes)
    model_a, model_b = any_of(a), any_of(b)
    if isinstance(request, Request) and request.seq_len is None:
        both = min(_length(model_a, request), _length(model_b, request))
        request = Request(**{**vars(request), "seq_len": both})
    if not (isinstance(model_a, Model) and isinstance(model_b, Model)):
        from metacount.verify.by_role import diff_by_role

        return diff_by_role(model_a, model_b, request)
    from metacount.diff.compared import diff
    from metacount.textbook.count import fitted

    first, second = zip(_names(model_a, model_b), (model_a.spec, model_b.spec), strict=True)
    return diff(first, second, fitted(model_a.spec, request), fitted(model_b.spec, request))


def _length(model: Model | TransformersOnly, request: Request) -> int:
    from metacount.resolve import TransformersOnly

    if isinstance(model, TransformersOnly):
        from metacount.verify.compare import fitted_outside

        return fitted_outside(model.source, request)[0].seq_len
    from metacount.textbook.count import fitted

    return fitted(model.spec, request).seq_len


def _names(a: Model, b: Model) -> tuple[str, str]:
    """Name two models; a changed one by its changes, where the names are one."""
    if a.id != b.id:
        return a.id, b.id
    changed = ", ".join(f"{name}={value}" for name, value in b.changes.items())
    return a.id, changed or f"{b.id} (2)"


@frozen
class Tree:
    """A model's modules: the folded tree, whose module it is, and what was run on it.

    `outputs`: the shapes of what each module gives, by its path; empty where they were not asked
    for.
    """

    root: Node
    made_by: str
    run: str
    outputs: Outputs
    workload: Workload | None = None

    def to_dict(self) -> Json:
        """Return plain data, with the share of each module in the first one."""
        tree = self.root.to_dict(self.root.params)
        return with_outputs(tree, self.outputs) if self.outputs else tree


def with_outputs(tree: Json, outputs: Outputs) -> Json:
    """Add to each module of a tree the shapes of what it gives."""
    children = [with_outputs(child, outputs) for child in tree["children"]]
    return {**tree, "outputs": outputs.get(tree["path"], []), "children": children}


@isolated
def tree(
    model: Given,
    workload: Workload | Request | None = None,
    *,
    only: str | None = None,
    flops: bool = False,
    active: bool = False,
    outputs: bool = False,
    inputs: Sequence[Tensor] = (),
    device: str = "meta",
    **sizes: Unpack[Sizes],
) -> Tree:
    """Fold a model's modules into a tree: our modules' of a spec, transformers' own of a config.

    `only` is the path of a module, or the end of one. `flops` and `outputs` run the workload, or a
    module of somebody's own over `inputs` on a `device` (meta, cpu), and say what each module ran
    and the shapes of what it gave. Our modules say how many parameters a token uses; with `active`
    others do too.

    >>> layer = tree("textbook-block", only="layers.0.self_attn").root
    >>> layer.params, [child.name for child in layer.children]
    (1048576, ['q_proj', 'k_proj', 'v_proj', 'o_proj'])
    """
    from metacount.given import has_config, is_module
    from metacount.measure.node import fold
    from metacount.measure.tree import node_at
    from metacount.resolve import any_of
    from metacount.textbook.count import run_text

    if is_module(model) and (inputs or not has_config(model)):
        if active:
            raise InputError("active is not known of a module of your own; leave it out")
        made = _of_module(model, inputs, device, runs=flops or outputs)
    else:
        from metacount.verify.subject import OURS, subject_of

        subject = subject_of(any_of(model), _request("tree", workload, sizes))
        if subject.source == OURS:
            made = _of_reference(subject, flops or outputs)
        else:
            made = _of_transformers(subject, flops or outputs, active)
    full, made_by, run, given = made
    root = fold(node_at(full, only) if only else full)
    ran_on = run if isinstance(run, str) else run_text(run)
    ran = None if isinstance(run, str) else run
    given = given if outputs else {}
    return Tree(root=root, made_by=made_by, run=ran_on, outputs=given, workload=ran)


def _of_module(module: nn.Module, inputs: Sequence[Tensor], device: str, *, runs: bool) -> Made:
    """Make the tree of a module of somebody's own, or of transformers' that is in hand."""
    from metacount.measure.tree import whole_tree
    from metacount.summary.modules import copied, outputs_of, run_copy

    copy, by_module = copied(module, device), None
    run, given = "", {}
    if runs:
        if not inputs:
            raise InputError("flops and outputs of a module of your own need inputs")
        with outputs_of(copy) as given:
            by_module = run_copy(copy, inputs, {}, device)[0].by_module()
        run = f"over {', '.join(str([*each.shape]) for each in inputs)}"
    return whole_tree(copy, flops=by_module), "your own module", run, given


def _of_reference(subject: Subject, flops: bool) -> Made:
    from metacount.measure.ours import measure_prefill
    from metacount.measure.tree import whole_tree
    from metacount.summary.modules import outputs_of

    module = subject.module
    with outputs_of(module) as outputs:
        by_module = measure_prefill(module, subject.run).by_module if flops else None
    return whole_tree(module, flops=by_module), "reference", subject.run, outputs


def _of_transformers(subject: Subject, flops: bool, active: bool) -> Made:
    from metacount.huggingface.module.witness import shortfall
    from metacount.measure.theirs import Roles, measure_any_forward, role_name, routing
    from metacount.measure.tree import whole_tree
    from metacount.summary.modules import outputs_of

    module = subject.module
    roles = Roles(module)
    by_module, outputs = None, {}
    if flops:
        try:
            with outputs_of(module) as outputs:
                by_module = measure_any_forward(module, subject.run, roles).prefill.by_module
        except Exception as error:  # whatever somebody else's forward raises
            raise InputError(f"no FLOPs: {shortfall(error)}; leave flops out") from None
    routed, unknown = routing(module)

    def used(_: object, tensor: Tensor) -> int:
        chosen, n_experts = routed.get(id(tensor), (1, 1))
        return tensor.numel() // n_experts * chosen

    if active and unknown:
        raise InputError(
            f"no number of experts per token is known for {unknown[0]}; leave active out"
        )
    root = whole_tree(
        module,
        flops=by_module,
        active=used if active else None,
        role=lambda path: role_name(roles.role.get(id(path[-1]))),
    )
    return root, subject.choice, subject.run, outputs
