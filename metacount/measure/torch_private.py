"""Keeps every private name of torch that metacount uses, so that a new torch breaks here alone.

What takes long to import is imported where it is asked for. `tests/measure/test_torch_private.py`
says of each name what is expected of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from inspect import unwrap
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._compile import _disable_dynamo
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_unflatten as tree_unflatten

from metacount.tensors import ONE_AT_A_TIME, FunctionMode, process_made_in, replaced_here

if TYPE_CHECKING:
    import sympy
    from torch._C._distributed_c10d import Store
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import Placement
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

# Devices for which a block of the caller may have automatic types on.
AUTOCAST = ("cpu", "cuda")

# Where torch keeps "this function with the compiler switched off" once it has asked the compiler.
SLOT = "__dynamo_disable"


class DispatchMode(TorchDispatchMode):
    """Runs each operator that is asked for inside; nothing is compiled there."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, a second, to keep it away from this mode: torch's own
        # hook for modes that need none of that
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> object:
        """Run the operator, unless the tensors' own class is to run others in its place."""
        return (
            NotImplemented if self.leaves_to(types) else self.run_operator(func, args, kwargs or {})
        )

    def leaves_to(self, types: Iterable[type]) -> bool:
        """Tell whether operators of such tensors are left to the tensors' own class."""
        return False

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run an operator, and return what it gives."""
        return func(*args, **kwargs)


def _guarded(module: ModuleType | type) -> Iterator[FunctionType]:
    """Yield the functions under `torch._disable_dynamo`, found under all their decorators.

    Through closures, not `__wrapped__`, which decorators further out overwrite.
    """
    guard = _disable_dynamo(lambda: None).__code__
    for function in vars(module).values():
        while isinstance(function, FunctionType):
            names, cells = function.__code__.co_freevars, function.__closure__ or ()
            held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
            inner = held.get("fn")
            if function.__code__ is guard and isinstance(inner, FunctionType):
                yield inner
            function = inner


@cache
def _all_guarded() -> tuple[FunctionType, ...]:
    places = (torch._refs, torch._refs.nn.functional, torch.optim.Optimizer)
    return tuple(function for place in places for function in _guarded(place))


@contextmanager
def without_compiler() -> Iterator[None]:
    """Run torch's reference kernels on meta, and make optimizers, without torch's compiler, which
    the first of either would import (half of what importing torch costs).

    They are wrapped to tell the compiler not to trace them. As long as nobody has imported it
    there is nobody to tell; afterwards every function is left as it was found.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    with ONE_AT_A_TIME:
        functions = {function for function in _all_guarded() if not hasattr(function, SLOT)}
        for function in functions:
            setattr(function, SLOT, function)
        try:
            yield
        finally:
            for function in functions:
                delattr(function, SLOT)


def step_of(optimizer: torch.optim.Optimizer) -> None:
    """Step an optimizer of torch's as it is written: its decorators would import the compiler."""
    with torch.no_grad():
        unwrap(type(optimizer).step)(optimizer)


def tensors_of(owner: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that a module itself holds; tied ones under each name."""
    own = (*owner._parameters.items(), *owner._buffers.items())
    return {name: tensor for name, tensor in own if tensor is not None}


def parameters_of(owner: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that a module itself holds, by name; tied ones under each."""
    return {name: tensor for name, tensor in owner._parameters.items() if tensor is not None}


def stored_buffers_of(owner: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a module itself holds and a checkpoint stores, by name."""
    return {
        name: tensor
        for name, tensor in owner._buffers.items()
        if tensor is not None and name not in owner._non_persistent_buffers_set
    }


def put_tensor(owner: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a parameter or buffer in the place of the one of that name."""
    if isinstance(tensor, nn.Parameter):
        owner._parameters[name] = tensor
    else:
        owner._buffers[name] = tensor


def is_hooked(module: nn.Module) -> bool:
    """Tell whether something watches or changes the forward of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def unwatched() -> AbstractContextManager[object]:
    """Hide the operators that run in the block from every mode: they are not measured."""
    return _disable_current_modes()


@contextmanager
def measuring() -> Iterator[None]:
    """Run a block as if nobody had set anything in torch, then leave all as it was.

    What torch keeps for each thread is set for this one: gradients, inference mode, autocast,
    modes of dispatch and of functions (a default device is one), hooks of saved tensors. What it
    keeps once (anomaly detection, deterministic algorithms, a default type other than float32) is
    switched for all threads, and only where somebody has set it.
    """
    with ONE_AT_A_TIME, ExitStack() as undone:
        modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
        undone.callback(lambda: [_push_mode(mode) for mode in reversed(modes)])
        if _len_torch_dispatch_stack():
            undone.enter_context(_disable_current_modes())
        undone.enter_context(torch.inference_mode(mode=False))
        undone.enter_context(torch.enable_grad())
        for device in AUTOCAST:
            if torch.is_autocast_enabled(device):
                undone.enter_context(torch.autocast(device, enabled=False))
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            undone.enter_context(saved_tensors_hooks(lambda saved: saved, lambda saved: saved))
        if torch.is_anomaly_enabled():
            undone.enter_context(torch.autograd.set_detect_anomaly(False))
        if torch.are_deterministic_algorithms_enabled():
            only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
            undone.callback(torch.use_deterministic_algorithms, True, warn_only=only_warns)
            torch.use_deterministic_algorithms(False)
        if torch.get_default_dtype() is not torch.float32:
            undone.enter_context(process_made_in(torch.float32))
        yield


def operator_name(op: OpOverload) -> str:
    """Return the name of an operator without its overload, as `aten::add`."""
    return op._schema.name


def returns_its_input(op: OpOverload) -> bool:
    """Tell whether an operator gives a view of what it got, and writes nothing."""
    returns = op._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return a number that one storage has as long as it lives, whichever tensor shows it."""
    key: int = storage._cdata
    return key


def keep_cuda_busy(cycles: int) -> None:
    """Queue a kernel that does nothing for so many cycles of the current device."""
    torch.cuda._sleep(cycles)


def is_fake(tensor: Tensor) -> bool:
    """Tell whether a tensor has a device in name only."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def symbolic_shapes() -> tuple[ShapeEnv, FakeTensorMode]:
    """Make an environment of symbolic sizes, and the mode in which tensors have them.

    Sizes 0 and 1 are no special cases, and equal numbers no equal sizes.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    # with symbols its cache takes longer to ask and to fill than it saves: twice the time
    mode.cache_enabled = False
    return environment, mode


class _InPython(FunctionMode):
    """Runs functions by torch's decompositions in Python, which keep sizes that are symbols.

    But not the loss, of which these make one operator that has no price.
    """

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run a function with these decompositions in force, or the loss without."""
        from torch._dispatch.python import enable_python_dispatcher

        loss = func is nn.functional.cross_entropy
        with nullcontext() if loss else enable_python_dispatcher():
            return func(*args, **kwargs)


@cache
def _products_keep_symbols() -> bool:
    environment, mode = symbolic_shapes()
    raw, size = symbolic_size(environment, "n", 7)
    with unwatched(), mode:
        torch.empty(size, 2, 1) @ torch.empty(size, 1, 3)
    same: bool = environment.replace(raw) == raw
    return same


def symbols_in_products() -> AbstractContextManager[object]:
    """Keep symbols in the sizes of products: torch 2.11 makes numbers of them, 2.13 does not."""
    return nullcontext() if _products_keep_symbols() else _InPython()


def symbolic_size(environment: ShapeEnv, name: str, hint: int) -> tuple[sympy.Expr, torch.SymInt]:
    """Make torch's own symbol for a new size, and the `SymInt` that carries it."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    raw = environment.create_symbol(
        hint,
        source=source,
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=None,
        positive=True,
        do_not_specialize_zero_one=True,
    )
    made = environment.create_symintnode(raw, hint=hint, source=source)
    assert isinstance(made, torch.SymInt)  # `raw` is a symbol
    return raw, made


def any_fan() -> AbstractContextManager[None]:
    """Let the bounds of random weights ask no size for its root until the block ends."""
    return replaced_here(nn.init, {"_calculate_fan_in_and_fan_out": lambda tensor: (1, 1)})


def grouped_product() -> Callable[..., Tensor]:
    """Return torch's grouped product, by its public name where this torch has one."""
    return getattr(nn.functional, "grouped_mm", None) or torch._grouped_mm


def unhook(module: nn.Module) -> None:
    """Take every hook off a module, of forward and backward; of a copy that is to be measured."""
    for name in vars(module):
        if name.endswith("_hooks") or "_hooks_" in name:
            vars(module)[name].clear()


def next_node_number() -> int:
    """Return the number of the next node that this thread adds to autograd's graph."""
    return torch._C._autograd._get_sequence_nr()


def running_node_number() -> int | None:
    """Return the number of the node whose backward runs; None where no operator made it."""
    node = torch._C._current_autograd_node()
    return None if node is None or "AccumulateGrad" in node.name() else node._sequence_nr()


def graph_names(root: Tensor) -> dict[int, str]:
    """Return the names of the nodes behind a tensor, by their numbers."""
    names: dict[int, str] = {}
    waiting: list[Any] = [root.grad_fn]
    seen: set[object] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names[node._sequence_nr()] = node.name()
        waiting += [above for above, _ in node.next_functions]
    return names


def cpu_fuses(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> bool:
    """Tell whether torch's CPU would run such heads by its fused attention, with small ones."""

    def small(x: Tensor) -> Tensor:
        return torch.empty(1, x.shape[1], 2, x.shape[-1], dtype=x.dtype, device="cpu")

    with unwatched():
        like = None
        if mask is not None:
            like = torch.empty(2, 2, dtype=mask.dtype, device="cpu")
            like.requires_grad_(mask.requires_grad)
        grouped = q.shape[1] != k.shape[1]
        choice = torch._fused_sdp_choice(
            small(q), small(k), small(v), like, 0.0, causal, enable_gqa=grouped
        )
    return bool(choice == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value)


def fake_store() -> Store:
    """Return the store that a fake process group is made with."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def group_of(args: Iterable[Any], known: Iterable[str]) -> str:
    """Find the name of the process group among the arguments of a collective."""
    for value in args:
        if isinstance(value, str) and value in known:
            return value
        if type(value).__name__ in ("ScriptObject", "ProcessGroup"):
            try:
                group = torch.distributed.ProcessGroup.unbox(value)
            except RuntimeError:  # another object of torch's, such as how to reduce
                continue
            return str(group.group_name)
    return ""


def packed_in(dim: int, parts: int) -> Placement:
    """Return the placement that cuts each of `parts` parts, one after another along `dim`."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim=dim, split_factor=parts)


@contextmanager
def in_place_of(owner: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Give a module these tensors in the place of its parameters until the block ends."""
    before = {name: owner._parameters[name] for name in tensors}
    for tensor in tensors.values():
        tensor._is_param = True  # what nn.Module asks of a parameter
    changed: dict[str, Any] = {**tensors}
    owner._parameters.update(changed)
    try:
        yield
    finally:
        owner._parameters.update(before)


def fake_tensors() -> FakeTensorMode:
    """Return the mode in which new tensors have sizes and a device, but no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def waited(tensor: Tensor) -> Tensor:
    """Wait for what a collective gave, and return it; return any other tensor as it is."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def exchanged_rows(rows: Tensor, there: list[int], back: list[int], group: ProcessGroup) -> Tensor:
    """Exchange the rows sent to the ranks of a group for those that they send here, so many each.

    With a gradient, which goes the other way.
    """
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    arrived: Any = _Arrived
    tensor: Tensor = arrived.apply(all_to_all_single_autograd(rows, there, back, group))
    return tensor


class _Arrived(torch.autograd.Function):
    """Waits for what a collective brings; older versions of torch do not let a gradient pass."""

    @staticmethod
    def forward(ctx: object, rows: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import wait_tensor

        tensor: Tensor = wait_tensor(rows)
        return tensor

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


@contextmanager
def ring_attention(mesh: Any) -> Iterator[None]:
    """Let torch's context parallelism take attention, whose positions `mesh` cuts."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention._enable_context_parallel_dispatcher_impl(2, mesh)
    try:
        yield
    finally:
        _attention._disable_context_parallel_dispatcher_impl()


def forget_ranks() -> None:
    """Make DTensor forget what it worked out for a rank: another one is of other sizes."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()


class Pieces:
    """What each rank of a group gets of a tensor, cut when it is asked for: a view of the tensor.

    The sizes are DTensor's, which cuts as `torch.chunk` does; pieces that are left over are empty.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._n, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Tensor:
        from torch.distributed.tensor import Shard

        rank, n_values = range(self._n)[index], self._tensor.size(self._dim)
        size, start = Shard.local_shard_size_and_offset(n_values, self._n, rank)
        if n_values and not size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, size)


@contextmanager
def only_own_pieces() -> Iterator[None]:
    """Let FSDP2 cut only the pieces of a parameter that it uses until the block ends.

    It uses its own and the first; a list of all is most of the work on thousands of ranks.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    names, name = vars(_fsdp_param), "_chunk_with_empty"
    before = names[name]
    names[name] = Pieces
    try:
        yield
    finally:
        names[name] = before


@contextmanager
def stages_unasked() -> Iterator[None]:
    """Let a pipeline begin without word from the other stages: those of a fake world give none."""
    from torch.distributed.pipelining import schedules, stage

    def begin(_: object, stages: Iterable[Any], *args: object) -> None:
        for each in stages:
            each._inference_mode = vars(stage)["InferenceMode"].STATIC

    owner, name = schedules._PipelineSchedule, "_warmup_p2p"
    with patch.object(owner, name, begin) if hasattr(owner, name) else nullcontext():
        yield


@contextmanager
def shapes_unwatched() -> Iterator[None]:
    """Hide from every mode what DTensor runs to learn the whole shape of a result.

    A real step knows it from the step before; on fake tensors torch runs it each time.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    learn = ShardingPropagator._propagate_tensor_meta

    def run(self: ShardingPropagator, schema: Any) -> Any:
        with unwatched():
            return learn(self, schema)

    with patch.object(ShardingPropagator, "_propagate_tensor_meta", run):
        yield


@contextmanager
def resizing_told(tell: Callable[[Tensor], None]) -> Iterator[None]:
    """Tell of each tensor whose storage FSDP2 empties or fills again, in the block, after it did.

    No operator does that: gathered parameters keep their tensors, and lose their memory.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    def telling(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def run(tensor: Tensor) -> None:
            resize(tensor)
            tell(tensor)

        return run

    places = [
        (vars(module), name)
        for module in (_fsdp_param, _fsdp_param_group)
        for name in ("alloc_storage", "free_storage")
        if name in vars(module)
    ]
    before = [names[name] for names, name in places]
    for names, name in places:
        names[name] = telling(names[name])
    try:
        yield
    finally:
        for (names, name), resize in zip(places, before, strict=True):
            names[name] = resize
