"""In somebody else's process: the caller's settings do not reach a measurement, nor its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount.errors import InputError
from metacount.modules.build import build

TINY = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 52, "vocab_size": 101}
TINY |= {"intermediate_size": 17, "num_attention_heads": 2, "num_key_value_heads": 1}


def trained() -> object:
    found = metacount.train(TINY, metacount.Request(seq_len=5))
    return found.peak_bytes, found.activation_bytes, found.backward_matmul_flops, found.params


# What each function of the API finds of a small model.
FUNCTIONS: dict[str, Callable[[], object]] = {
    "count": lambda: metacount.count(TINY, seq_len=5).to_dict(),
    "verify": lambda: metacount.verify(TINY, seq_len=5).to_dict(),
    "tree": lambda: metacount.tree(TINY, metacount.Request(seq_len=5), flops=True).to_dict(),
    "flow": lambda: metacount.flow(TINY, metacount.Request(seq_len=5)).to_dict(),
    "flow of ours": lambda: metacount.flow("textbook-block").matmul_flops,
    "summary": lambda: metacount.summary(nn.Linear(3, 5)).flops(input_size=(2, 3)),
    "train": trained,
    "train ours": lambda: metacount.train("textbook-block").peak_bytes,
    "shard": lambda: metacount.shard(TINY, "dp=2", train=True, seq_len=5).to_dict(),
    "diff": lambda: metacount.diff(TINY, {"model_type": "bert", "num_hidden_layers": 1}).to_dict(),
}


@cache
def alone(name: str) -> str:
    return repr(FUNCTIONS[name]())


@contextmanager
def switched(switch: Callable[..., object], on: object, off: object) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


# Settings of a caller, and what he can ask about them.
SETTINGS: dict[str, tuple[Callable[[], AbstractContextManager[object]], Callable[[], object]]] = {
    "inference mode": (torch.inference_mode, torch.is_inference_mode_enabled),
    "no_grad": (torch.no_grad, torch.is_grad_enabled),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "autocast": (
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.is_autocast_enabled("cpu"),
    ),
    "deterministic": (
        lambda: switched(torch.use_deterministic_algorithms, True, False),
        torch.are_deterministic_algorithms_enabled,
    ),
    "default dtype": (
        lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
        torch.get_default_dtype,
    ),
    "default device": (
        lambda: switched(torch.set_default_device, "meta", None),
        lambda: torch.ones(2).device,
    ),
    "fake tensors": (FakeTensorMode, lambda: type(torch.ones(2))),
    "flops": (lambda: FlopCounterMode(display=False), int),
    "saved tensors": (lambda: torch.autograd.graph.save_on_cpu(), int),
}


ALL = "all of them"


@pytest.mark.parametrize(
    ("name", "setting"),
    [*((n, s) for n in ("summary", "train") for s in SETTINGS), *((n, ALL) for n in FUNCTIONS)],
)
def test_a_setting_does_not_reach_a_measurement(name: str, setting: str) -> None:
    expected = alone(name)
    with ExitStack() as settings:
        for enter, _ in SETTINGS.values() if setting == ALL else [SETTINGS[setting]]:
            settings.enter_context(enter())
        environ = dict(os.environ)  # torch's deterministic algorithms add to it themselves
        before = [repr(state()) for _, state in SETTINGS.values()]
        assert repr(FUNCTIONS[name]()) == expected
        assert [repr(state()) for _, state in SETTINGS.values()] == before
        assert dict(os.environ) == environ


def test_operators_of_a_measurement_are_not_the_callers() -> None:
    with FlopCounterMode(display=False) as counter:
        torch.ones(2, 3) @ torch.ones(3, 5)
        metacount.verify(TINY, seq_len=5)
    assert counter.get_total_flops() == 2 * 2 * 3 * 5


def work() -> list[Tensor]:
    """What somebody computes with values: initialised, run and trained, in the default type."""
    draw = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, generator=draw)
    x = torch.ones(2, 5) / 3
    model(x).square().sum().backward()
    return [x, torch.arange(3) / 2, *(p.detach() for p in model.parameters()), model[0].weight.grad]


def differing(ended: threading.Event) -> tuple[int, list[object]]:
    """Work until it is said, in this thread; return how often, and what was not as it is alone."""
    different, rounds = list[object](), 0
    while not ended.is_set():
        again = work()
        same = (a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(WORK, again, strict=True))
        if not all(same):
            different.append([tensor.dtype for tensor in again])
        rounds += 1
    return rounds, different


WORK = work()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_thread_sees_nothing(name: str) -> None:
    expected = alone(name)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(differing, ended)
        try:
            found = [repr(FUNCTIONS[name]()) for _ in range(3)]
        finally:
            ended.set()
    rounds, different = working.result()  # nothing was raised in it
    assert (different, found) == ([], [expected] * 3)
    assert rounds > 0


def test_two_threads_find_what_one_finds() -> None:
    names = [name for name in FUNCTIONS for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: repr(FUNCTIONS[name]()), names))
    assert found == [alone(name) for name in names]


class InThreads(nn.Module):
    """Runs its parts in threads of its own, and may keep what they raise."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.keeps = keeps

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(part, x) for part in self.parts]
        return x if self.keeps else futures[0].result() + futures[1].result()


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "measure",
    [
        lambda module: metacount.summary(module).flops(input_size=(2, 3)),
        lambda module: metacount.train(module, inputs=[torch.ones(2, 3)]),
    ],
)
def test_a_forward_in_threads_is_no_zero(keeps: bool, measure: Callable[..., object]) -> None:
    with pytest.raises(InputError, match=r"parts.\d runs in another thread, in which nothing is c"):
        measure(InThreads(keeps=keeps))


def test_the_process_is_as_it_was() -> None:
    before = torch.get_rng_state()
    build(metacount.entry("textbook-block").spec(), device="cpu", seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    code = (
        "import os\nbefore = dict(os.environ)\nimport metacount\n"
        "metacount.tree('textbook-block', flops=True)\nmetacount.train('textbook-block')\n"
        "assert dict(os.environ) == before\n"
        "import argparse, gettext, metacount.cli.options\nassert argparse._ is gettext.gettext\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
