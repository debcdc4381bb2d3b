"""One counter for our modules, transformers' and anybody's: by role, operator and module."""

from __future__ import annotations

import operator
from collections import UserDict
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from metacount.measure.alike import Folding, OwnNumber, layers_in_lists
from metacount.measure.counter import FlopCounter

if TYPE_CHECKING:
    from collections.abc import Callable

B, S = 3, 5


class Net(nn.Module):
    """A stranger's module: two layers, one of them used twice, and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 11), nn.Linear(11, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(self.second(self.first(x))))
        return y @ y.transpose(-1, -2)


def test_a_strangers_module_is_counted_by_module() -> None:
    with FlopCounter().watching(net := Net()) as counter:
        net(torch.empty(B, 7))
    # 2 FLOPs per multiply-add, two runs of 7·11 each; [B, 7] @ [7, B] in the net itself
    assert counter.by_module() == {
        "first": 2 * 2 * B * 7 * 11,
        "second": 2 * 2 * B * 7 * 11,
        "": 2 * B * 7 * B,
    }
    assert sum(counter.by_operator().values()) == sum(counter.by_module().values())
    assert counter.by_role()["other"] == sum(counter.by_module().values())


class Config:
    """Somebody's config, told by this method of transformers' configs; one list goes by layer."""

    times = 1

    def __init__(self) -> None:
        self.by_layer = [1, 1, 1]

    def to_diff_dict(self) -> None:
        raise AssertionError("never asked")


class Kept:
    """A cache as transformers has it: a state for each layer."""

    def __init__(self) -> None:
        self.layers: list[Any] = []

    def get_seq_length(self) -> int:
        return 0


class State:
    """What a cache keeps of one layer."""

    def __init__(self, times: int) -> None:
        self.times = times


class Layer(nn.Module):
    """A layer that multiplies as often as any of what it can read says."""

    def __init__(self, number: int, config: Config) -> None:
        super().__init__()
        self.layer_idx, self.config = number, config
        self.inner = nn.Linear(7, 7, bias=False)
        self.times, self.pair = 1, (1, 1)
        self.register_buffer("counts", torch.empty(1))

    def forward(
        self,
        x: torch.Tensor,
        *,
        told: int = 1,
        table: Any = None,
        cache: Any = None,
        notes: list[int] | None = None,
    ) -> torch.Tensor:
        times = [
            self.times,
            *self.pair,
            told,
            self.config.by_layer[self.layer_idx],
            len(x),
            *(table or {}).values(),
            1 + self.training,
            self.counts.shape[0],
            getattr(self.inner, "times", 1),
            2 if x.dtype == torch.float64 else 1,
        ]
        if notes is not None:
            notes.append(1)
            times.append(len(notes) - 1)
        if cache is not None:
            if len(cache.layers) <= self.layer_idx:
                cache.layers.append(State(1))
            times.append(cache.layers[self.layer_idx].times)
        for _ in range(max(times)):
            x = x.float() @ self.inner.weight.float()
        return x


class Stack(nn.Module):
    """Three such layers; what the last one is given is set apart."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList(Layer(i, self.config) for i in range(3))
        self.all: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.before_last = lambda x: x

    def forward(self, x: torch.Tensor) -> None:
        for i, layer in enumerate(self.layers):
            last = i == 2
            layer(self.before_last(x) if last else x, **self.all, **(self.last if last else {}))


def with_state_of_the_last(net: Any) -> None:
    net.all = {"cache": Kept()}
    net.all["cache"].layers = [State(1), State(1), State(2)]


DIFFERS = {
    "an attribute": lambda net: setattr(net.layers[2], "times", 2),
    "an item of one": lambda net: setattr(net.layers[2], "pair", (1, 2)),
    "an attribute inside": lambda net: setattr(net.layers[2].inner, "times", 2),
    "the config's list": lambda net: setattr(net.config, "by_layer", [1, 1, 2]),
    "a buffer's shape": lambda net: setattr(net.layers[2], "counts", torch.empty(2)),
    "its mode": lambda net: net.layers[2].train(),
    "an argument": lambda net: net.last.update(told=2),
    "an argument's item": lambda net: net.last.update(table={"told": 2}),
    "the input's shape": lambda net: setattr(net, "before_last", lambda x: x.expand(2, 7)),
    "the input's type": lambda net: setattr(net, "before_last", lambda x: x.double()),
    "the state of its cache": with_state_of_the_last,
    "a note that each adds to": lambda net: net.all.update(notes=[]),
}


def stack() -> Any:
    with torch.device("meta"):
        return Stack().eval()


def products(net: Any, *, enabled: bool) -> tuple[int, int, int]:
    """FLOPs of it, and how many layers ran and did not."""
    counter, folding = FlopCounter(), Folding(layers_in_lists(net) if enabled else ())
    with counter.watching(net), folding.counting(counter):
        net(torch.empty(1, 7, device="meta"))
    return sum(counter.by_operator().values()), folding.ran, folding.replayed


ONE = 2 * 7 * 7  # a row of 7 times a 7 by 7 matrix


@pytest.mark.parametrize("given", [{}, {"told": 1}, {"table": {"told": 1}}, {"cache": True}])
def test_layers_that_differ_in_their_number_alone_run_once(given: dict[str, Any]) -> None:
    net = stack()
    net.all = {"cache": Kept()} if "cache" in given else given
    assert products(net, enabled=True) == (3 * ONE, 1, 2)
    if "cache" in given:
        assert [type(state) for state in net.all["cache"].layers] == [State] * 3
        assert len({id(state) for state in net.all["cache"].layers}) == 3


@pytest.mark.parametrize("differs", DIFFERS)
def test_layers_that_differ_in_anything_they_can_read_do_not(differs: str) -> None:
    counts = []
    for enabled in (True, False):
        net = stack()
        DIFFERS[differs](net)
        counts.append(products(net, enabled=enabled)[0])
    # the last multiplies twice; in the one case that its input has two rows, both of them
    assert counts == [(6 if "shape" in differs and "input" in differs else 4) * ONE] * 2


class Writer(Layer):
    """A layer that multiplies twice where one before it wrote; the third writes."""

    def forward(self, x: torch.Tensor, *, shared: Any = None, cache: Any = None) -> torch.Tensor:  # type: ignore[override]
        for _ in range(2 if getattr(cache, "written", False) or shared else 1):
            x = x @ self.inner.weight
        if self.times == 2:
            if shared is not None:
                shared["keys"] = x
            if cache is not None:
                cache.written = True
        if cache is not None:
            cache.layers.append(State(1))
        return x


def writers(**given: Any) -> Any:
    net = stack()
    with torch.device("meta"):
        net.layers = nn.ModuleList(Writer(i, net.config) for i in range(6))
    net.config.by_layer = [1] * 6
    net.layers[2].times = 2
    net.all = given
    return net.eval()


@pytest.mark.parametrize("what", ["shared", "cache"])
def test_what_a_layer_writes_for_others_is_seen(what: str) -> None:
    """Three run once each, three twice; those that run stand for the others on their side of it."""
    made: Callable[[], Any] = {"shared": UserDict, "cache": Kept}[what]
    assert products(writers(**{what: made()}), enabled=False)[0] == 9 * ONE
    assert products(writers(**{what: made()}), enabled=True) == (9 * ONE, 3, 3)


def test_layers_with_a_hook_of_their_own_are_not_alike() -> None:
    net = stack()
    net.layers[2].inner.register_forward_hook(lambda *_: None)
    assert products(net, enabled=True)[1:] == (2, 1)


class Numbered(nn.Module):
    def __init__(self, number: int, uses: str) -> None:
        super().__init__()
        self.layer_idx, self.uses, self.up = number, uses, nn.Linear(7, 7)

    def forward(self, x: torch.Tensor, layer_idx: int) -> torch.Tensor:
        if self.uses == "asks" and layer_idx % 2:
            return x
        if self.uses == "cuts":  # torch takes a number without asking anything of it
            x = torch.cat([x] * 9)[: 9 - layer_idx]
        return self.up(x)[:1]


class Numbering(nn.Module):
    """Seven layers that are handed their number."""

    def __init__(self, uses: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Numbered(i, uses) for i in range(7))

    def forward(self, x: torch.Tensor) -> None:
        for i, layer in enumerate(self.layers):
            x = layer(x, i)


@pytest.mark.parametrize(("uses", "ran"), [("nothing", 2), ("asks", 7), ("cuts", 7)])
def test_layers_that_are_handed_their_number_run_where_they_use_it(uses: str, ran: int) -> None:
    net = Numbering(uses).to("meta")
    every, _, _ = products(net, enabled=False)
    found, _, replayed = products(net, enabled=True)
    assert (found, replayed) == (every, 7 - ran)


def asks(question: Callable[[int], object]) -> bool:
    """Whether something is asked of a layer's number."""
    number = OwnNumber(3)
    question(number)
    return number.asked


def test_what_is_a_question_to_a_layers_number() -> None:
    """A layer that compares its number, prints it or computes with it is not like the next one."""
    compared = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
    computed = [operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv]
    for question in (*compared, *computed):
        assert asks(lambda number, q=question: q(number, 2)), question
    for question in (str, bool, repr, "{}".format, lambda n: n in (1, 2), lambda n: n in {3}):
        assert asks(question), question
    assert not asks(lambda number: [1, 2, 3, 4][number])
    assert not asks(lambda number: {"layer_idx": number})
