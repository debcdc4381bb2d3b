"""Whatever module somebody has is measured exactly, and is afterwards as it was before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import one_line
from helpers.real_step import transformers_on_cpu
from helpers.release import daily
from helpers.small_configs import small_config
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount import InputError
from metacount.measure.operators import FREE, PRICED, UncountedOp, price


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.first = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.zeros(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.head(self.blocks(x)[:, 0])


class Runs(nn.Module):
    """A module of one function, which may run another module."""

    def __init__(self, run: Callable[..., Tensor], *inner: nn.Module) -> None:
        super().__init__()
        self.run, self.inner = run, nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(*self.inner, x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)])
        self.middle = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16))
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(16, 8, 2, stride=2), nn.ConvTranspose2d(8, 3, 2, stride=2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.down:
            kept.append(nn.functional.max_pool2d(layer(kept[-1]).relu(), 2))
        y = self.middle(kept[-1])
        for layer, skipped in zip(self.up, kept[-2::-1], strict=True):
            y = layer(y) + skipped
        return y


class Tied(nn.Module):
    """One table twice, and one layer called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = x + self.layer(x)
        return self.head(x)


class Cached(nn.Module):
    """Makes a table when it is first asked for it, and counts how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.angles: Tensor | None = None
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.angles is None or len(self.angles) < x.shape[1]:
            self.angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None].expand(-1, 8).sin()
        self.runs += 1
        return self.layer(x + self.angles)


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


# each with what its forward is given
OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "conv net": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        ),
        lambda: (torch.rand(2, 3, 16, 16),),
    ),
    "vision transformer": (Vision, lambda: (torch.rand(2, 3, 32, 32),)),
    "lstm": (
        lambda: nn.Sequential(
            nn.Embedding(50, 16),
            Runs(lambda m, x: m(x)[0], nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)),
            nn.Linear(48, 5),
        ),
        lambda: (ids(2, 7),),
    ),
    "u-net": (UNet, lambda: (torch.rand(2, 3, 16, 16),)),
    "nn.Transformer": (
        lambda: nn.Transformer(16, 2, 2, 2, 32, batch_first=True),
        lambda: (torch.rand(2, 5, 16), torch.rand(2, 7, 16)),
    ),
    "tied weights": (Tied, lambda: (ids(2, 7),)),
    "lazily made cache": (Cached, lambda: (torch.rand(2, 5, 8),)),
}
KINDS = ["llama", "gpt2", "bert", "t5", "mixtral", "mamba", "opt", "bloom", "gemma2"]


def transformers_model(kind: str) -> Any:
    """A small instance on the CPU, with weights."""
    return transformers_on_cpu(small_config(kind), "fp32")


def distinct(module: nn.Module) -> int:
    return sum({id(p): p.numel() for p in module.parameters()}.values())


class State:
    """All that a measurement must leave as it is."""

    def __init__(self, module: nn.Module) -> None:
        self.tensors = {
            name: (id(t), t._version, t.device, t.requires_grad)
            for name, t in (*module.named_parameters(), *module.named_buffers())
        }
        self.values = {name: t.clone() for name, t in module.state_dict().items()}
        self.modes = [m.training for m in module.modules()]
        self.keys = [sorted(vars(m)) for m in module.modules()]
        self.plain = [
            {k: copy.copy(v) for k, v in vars(m).items() if isinstance(v, int | str)}
            for m in module.modules()
        ]
        self.hooks = [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in module.modules()
        ]

    def assert_kept(self, module: nn.Module) -> None:
        now = State(module)
        assert now.tensors == self.tensors
        assert list(now.values) == list(self.values)
        assert all(torch.equal(now.values[name], t) for name, t in self.values.items())
        for name in ("modes", "keys", "plain", "hooks"):
            assert getattr(now, name) == getattr(self, name), name


@daily(6)
@pytest.mark.parametrize("name", OWN)
def test_a_module_of_ones_own(name: str) -> None:
    make, inputs = OWN[name]
    module, given = make(), inputs()
    module.eval() if name == "conv net" else module.train()
    called: list[int] = []
    module.register_forward_hook(lambda *_: called.append(1))
    before = State(module)
    found = metacount.summary(module)
    flops = found.flops(*given)
    assert (found.params, found.by_role, found.active_params) == (distinct(module), None, None)
    assert "unknown" in str(found)
    steps = found.flow(*given)
    assert (steps.matmul_flops, steps.params, steps.unused) == (flops, found.params, 0)
    before.assert_kept(module)
    assert called == []
    with torch.no_grad(), FlopCounterMode(display=False) as mode:
        module(*given)  # as it is: in eval mode torch may run other operators on the CPU
    assert called == [1]  # the hook is there, and works
    if name != "lstm":  # whose cells run as one operator here, that torch prices at 0
        assert flops == mode.get_total_flops()


@daily(10)
@pytest.mark.parametrize("kind", KINDS)
def test_an_instance_of_transformers(kind: str) -> None:
    module = transformers_model(kind).train()
    before = State(module)
    found = metacount.summary(module)
    assert found.params == distinct(module)
    assert found.by_role is not None
    assert sum(found.by_role.values()) == found.params
    run = metacount.Workload(batch_size=2, seq_len=9)
    steps = found.flow(workload=run)
    assert steps.matmul_flops == found.flops(workload=run) > 0
    assert "S" in {one.letter for one in steps.letters}
    before.assert_kept(module)


def test_what_a_forward_changes_is_said_and_not_done() -> None:
    module = Cached()
    steps = metacount.summary(module).flow(torch.rand(2, 5, 8))
    assert "its forward changes runs" in " ".join(steps.notes)
    assert (module.runs, module.angles) == (0, None)


class Sparse(nn.Module):
    """A mixture that asks which tokens chose an expert."""

    def __init__(self, d: int = 8, n_experts: int = 4, k: int = 2) -> None:
        super().__init__()
        self.k, self.router = k, nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n_experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self.k, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token) > 0:
                out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


# the router, and 2 of the experts for each of 10 tokens
OF_SPARSE = 2 * 10 * 8 * 4 + 2 * (2 * 10) * 8 * 8


@pytest.mark.parametrize("x", [torch.rand(10, 8), torch.empty(10, 8, device="meta")])
def test_a_forward_that_depends_on_data_runs_on_the_cpu(x: Tensor) -> None:
    module = Sparse()
    before = State(module)
    found = metacount.summary(module).flow(x, device="cpu")
    assert found.matmul_flops == OF_SPARSE
    assert "on the CPU" in found.notes[-1]
    step = metacount.train(module, inputs=(x,), device="cpu")
    # of the input no gradient is asked: a product for each weight
    assert (step.matmul_flops, step.backward_matmul_flops) == (OF_SPARSE, OF_SPARSE)
    assert step.device == "cpu"
    assert "measured on the CPU" in str(step)
    before.assert_kept(module)
    if not x.is_meta:
        with FlopCounterMode(display=False) as counter:
            module(x)
        assert counter.get_total_flops() == OF_SPARSE


def test_attention_of_torch_is_one_operator() -> None:
    x = torch.rand(2, 3, 5, 8)
    attention = nn.functional.scaled_dot_product_attention
    module = Runs(lambda x: attention(x, x, x, is_causal=True))
    for device in ("meta", "cpu"):
        (step,) = metacount.summary(module).flow(x, device=device).steps
        assert step.operators == ("scaled_dot_product_attention",)
        assert step.flops == 2 * (2 * 2 * 3 * 5 * 5 * 8)


def unfinished(x: Tensor) -> Tensor:
    raise NotImplementedError("no such mode")


ASKS, PICKS = Runs(lambda x: x if x.sum() > 0 else -x), Runs(lambda x: x[x > 0])
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: metacount.summary(nn.LazyLinear(3)), "weight has no shape yet"),
    (lambda: metacount.summary(ASKS).flops(torch.rand(3)), 'depends on .* device="cpu"'),
    (lambda: metacount.summary(PICKS).flops(torch.rand(3)), "depends on .* --device cpu"),
    (lambda: metacount.train(Sparse(), inputs=(torch.rand(5, 8),)), "depends on .* --device cpu"),
    (lambda: metacount.summary(ASKS).flops(torch.rand(3), device="gpu"), "choose meta or cpu"),
    (
        lambda: metacount.train(
            nn.Linear(2**16, 2**15, device="meta"), input_size=(1, 2**16), device="cpu"
        ),
        "has 8.00 GiB, and device cpu takes",
    ),
    (
        lambda: metacount.summary(nn.Linear(3, 4)).flops(torch.rand(2, 5)),
        r"fails on \[2, 5\] float32",
    ),
    (
        lambda: metacount.summary(nn.Embedding(5, 4)).flops(torch.rand(2, 5)),
        r"fails on \[2, 5\] float32: .*--input 2,16:int64",
    ),
    (
        lambda: metacount.summary(Runs(unfinished)).flops(torch.rand(3)),
        "fails on .*NotImplementedError: no such mode",
    ),
    (lambda: metacount.summary(nn.Linear(3, 4)).flops(), "needs inputs"),
    (lambda: metacount.summary(nn.Linear(3, 4)).flops(input_size=(2, -1)), "whole numbers"),
    (lambda: metacount.summary(nn.Linear(3, 4)).flops(input_size=(2, 3), dtype="f8"), "dtype is"),
    (lambda: metacount.summary(nn.Linear(3, 4)).flops(torch.rand(3), input_size=(3,)), "leave"),
    (
        lambda: metacount.summary(nn.ModuleList([nn.Linear(3, 4)])).flops(torch.rand(3)),
        "has no forward",
    ),
    (lambda: metacount.summary(nn.Linear(3, 4)).flow(torch.rand(3), decode=True), "tokens"),
    (lambda: metacount.summary(3), "a model is a name"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_cannot_be_measured_is_one_clear_line(case: int) -> None:
    act, said = WRONG[case]
    with pytest.raises(InputError, match=said) as caught:
        act()
    one_line(caught.value)


def test_an_operator_without_a_price_is_named_and_can_be_priced() -> None:
    found = metacount.summary(Runs(lambda x: torch.linalg.svd(x)[0]))
    op = torch.ops.aten._linalg_svd
    assert op not in PRICED
    with pytest.raises(UncountedOp, match=r"_linalg_svd.* metacount\.price\(") as caught:
        found.flops(torch.rand(3, 4))
    one_line(caught.value)
    try:
        price(op, lambda a, *_: 7 * a.numel())
        assert found.flops(torch.rand(3, 4)) == 84
        del PRICED[op]
        price(op, 0)
        assert found.flops(torch.rand(3, 4)) == 0
    finally:
        PRICED.pop(op, None)
        FREE.discard(op)
    with pytest.raises(InputError, match="a price is"):
        price(op, 3)
    with pytest.raises(InputError, match="an operator is"):
        price("svd", 0)


def test_a_model_of_ours_has_roles_and_letters() -> None:
    from metacount.modules.build import build

    spec = metacount.entry("mixtral-8x7b").spec()
    found = metacount.summary(build(spec))
    counted = metacount.count(spec)
    assert (found.params, found.active_params) == (counted.params, counted.active_params)
    assert found.by_role == dict(metacount.summary(spec).by_role or {})
    assert found.flops() == metacount.summary("mixtral-8x7b").flops() == counted.matmul_flops


def test_the_other_questions_take_an_instance_too() -> None:
    model: Any = transformers_model("llama")
    run = metacount.Workload(batch_size=2, seq_len=9)
    assert metacount.count(model).params == distinct(model)
    found = metacount.verify(model, run)
    assert found.agree
    assert "transformers" in [witness.name for witness in found.witnesses]
    assert metacount.check("12*n_layers*d_model**2", model).verdict == "wrong"
    assert metacount.flow(model, run).matmul_flops == metacount.count(model, run).matmul_flops
    assert metacount.summary(model.config).params == distinct(model)
    assert metacount.summary(model.config.to_dict()).params == distinct(model)
    model.resize_token_embeddings(100)
    model.config.vocab_size = 96
    for question in (metacount.count, metacount.verify):
        with pytest.raises(InputError):
            question(model)
    assert metacount.summary(model).params == distinct(model)
    with pytest.raises(InputError, match=r"metacount\.summary\(module\)"):
        metacount.count(Tied())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_counted_and_not_run() -> None:
    layers = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    net = nn.Sequential(nn.Linear(3, 3), *(torch.jit.script(layer) for layer in layers))
    found = metacount.summary(net)
    assert (found.params, found.buffers) == (12 + 2 * (12 + 6), 2 * (3 + 3 + 1))
    with pytest.raises(InputError):
        found.flops(input_size=(2, 3))
    with pytest.raises(InputError):
        metacount.flow(net[1], inputs=torch.zeros(2, 3))
