"""A stack goes by what it is, in the modules and on every screen that shows them."""

from __future__ import annotations

import pytest
from helpers.command_line import run
from helpers.release import daily

from metacount.catalog import entries, entry
from metacount.measure.tree import Node, module_tree
from metacount.modules.build import build

STACKS = {
    "encoder": {"encoder"},
    "encoder-decoder": {"encoder", "decoder"},
    "decoder": {"decoder"},
    "prefix-decoder": {"decoder"},
}


def names(node: Node) -> set[str]:
    return {node.name}.union(*map(names, node.children))


def one_of_each_kind() -> dict[str, str]:
    return {e.spec().kind: e.id for e in entries() if e.sizes is not None}


@pytest.mark.parametrize(("kind", "stacks"), STACKS.items())
def test_a_tree_names_its_stacks_by_what_they_are(kind: str, stacks: set[str]) -> None:
    tree = module_tree(build(entry(one_of_each_kind()[kind]).spec()))
    assert names(tree) & {"encoder", "decoder"} == stacks


@daily(5)
@pytest.mark.parametrize(
    "arguments",
    [
        ("tree", "bert-base"),
        ("tree", "bert-base", "--json"),
        ("formula", "bert-base", "--from-code"),
        ("formula", "bert-base", "--from-code", "--quantity", "matmul_flops", "--seq", "64"),
        ("count", "bert-base"),
        ("verify", "bert-base"),
    ],
)
def test_no_screen_calls_an_encoder_a_decoder(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert "decoder" not in run(capsys, *arguments)
