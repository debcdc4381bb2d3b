"""Ten setups of training through metacount and through the tools that estimate their memory.

python benchmarks/peers.py --training [--megatron DIR] [--torchtitan DIR] [--tools NAME ...]
                                      [--venv DIR] [--saved] [--json]

The truth is what metacount measured: `train` runs transformers' module on one device, `shard` puts
the reference module on a fake world by torch's FSDP2 and tensor parallelism, and the largest rank
counts. Compared are model states (parameters, gradients, optimizer; with ZeRO 1 and 2 also the
gathered parameters in bf16, which stay over the step), activations that the backward keeps, and on
one device the peak of a step. Where a difference comes from is said as far as the bytes show it.
torch's trackers run in place of torchtitan too, whose script runs them, and asks for a GPU.
Of Megatron-LM and torchtitan the tools are in their repositories alone: DIR is a checkout.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peer_process import HERE, environment, run_worker, say, versions
from peer_training_results import text_of

RESULTS = HERE / "results" / "peers_training.json"
TORCHTITAN = HERE / "peers-torchtitan-requirements.txt"
WORKER = HERE / "peer_training_tools.py"
TRUTH = "metacount"
# Tool: its package, or where in its checkout the version is.
TOOLS = {
    TRUTH: "metacount",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "megatron-lm": "megatron/core/package_info.py",
    "torch tracker": "torch",
    "torchtitan": "assets/version.txt",
}
TIME_LIMIT = 900  # seconds of one tool and one setting


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and how it is trained, one sequence at a time on each rank.

    `master`: float32 weights beside those in bf16; `grad_fp32`: on one device, gradients in float32
    too, as they are on a mesh. `flavor` is torchtitan's name of the model, where it has it.
    """

    name: str
    model: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    dtype: str = "bf16"
    master: bool = True
    grad_fp32: bool = False
    attention: str = "flash"
    checkpointing: str = "none"
    seq: int = 2048
    flavor: tuple[str, str] | None = None

    @property
    def micro_batches(self) -> int:
        """Sequences that a rank runs in a step: as many as there are stages."""
        return self.pp


SETTINGS = (
    Setting(name="1", model="gpt2", dtype="fp32", master=False, attention="eager", seq=1024),
    Setting(name="2", model="llama-7b", grad_fp32=True),
    Setting(
        name="3", model="gpt2", master=False, attention="eager", checkpointing="full", seq=1024
    ),
    Setting(name="4", model="llama-7b", dp=8, zero=1),
    Setting(name="5", model="llama-7b", dp=8, zero=2),
    Setting(name="6", model="llama3-8b", dp=64, zero=3, flavor=("llama3", "llama3_8b")),
    Setting(
        name="7",
        model="qwen3-0.6b",
        dp=8,
        zero=3,
        checkpointing="full",
        flavor=("qwen3", "qwen3_0.6b"),
    ),
    Setting(name="8", model="llama3-8b", dp=2, tp=8, pp=4, zero=1),
    Setting(name="9", model="mixtral-8x7b", dp=8, zero=3),
    Setting(name="10", model="qwen3-235b-a22b", dp=16, tp=4, pp=2, ep=8, zero=1),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one tool said of one setting: figures, or why it cannot, or how it failed."""

    tool: str
    setting: str
    cpu_seconds: float
    peak_bytes: int
    figures: dict[str, int] = field(default_factory=dict)
    cannot: str | None = None
    error: str | None = None


def run(
    python: Path, tool: str, setting: Setting, config: dict[str, Any], checkout: Path | None
) -> Run:
    """One tool on one setting, in its own process."""
    given = {**asdict(setting), "micro_batches": setting.micro_batches, "config": config}
    where = "" if checkout is None else str(checkout.resolve())
    ended = run_worker(python, WORKER, tool, given, where, TIME_LIMIT)
    why = {name: ended.found.pop(name, None) for name in ("cannot", "error")}
    return Run(
        tool=tool,
        setting=setting.name,
        cpu_seconds=ended.cpu_seconds,
        peak_bytes=ended.peak_bytes,
        figures=ended.found,
        **why,
    )


def version_of(tool: str, checkout: Path | None, packages: dict[str, str]) -> str | None:
    """The version of a tool: of its package, or what its checkout says.

    >>> version_of("torch tracker", None, {"torch": "2.13.0+cpu"})
    '2.13.0+cpu'
    """
    where = TOOLS[tool]
    if where in packages:
        return packages[where]
    if checkout is None:
        return None
    text = (checkout / where).read_text(encoding="utf-8")
    parts = re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)", text, flags=re.MULTILINE)
    return ".".join(parts) or text.strip()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only this comparison has."""
    parser.add_argument("--training", action="store_true", help="compare the memory of training")
    for name in ("megatron", "torchtitan"):
        parser.add_argument(
            f"--{name}", type=Path, metavar="DIR", help="a checkout, for --training"
        )


def training(
    parser: argparse.ArgumentParser, args: argparse.Namespace, configs: dict[str, dict[str, Any]]
) -> int:
    """Run, print and, if every tool was asked, save."""
    if args.models is not None:
        parser.error("--models is not for --training, whose ten settings name theirs")
    if unknown := sorted(set(args.tools or ()) - TOOLS.keys()):
        parser.error(f"--tools {unknown[0]} is unknown; choose from {', '.join(TOOLS)}")
    if args.saved:
        data = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        data = collected(args, configs)
    text = json.dumps(data, indent=1) + "\n"
    if not args.saved and args.tools is None:
        if args.megatron is None or args.torchtitan is None:
            say("not saved: that needs --megatron and --torchtitan")
        else:
            RESULTS.write_text(text, encoding="utf-8")
    print(text if args.json else text_of(data), end="")
    return 0


def collected(args: argparse.Namespace, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Every run as plain data, with the versions."""
    checkouts = {"megatron-lm": args.megatron, "torchtitan": args.torchtitan}
    python = environment(args.venv, [TORCHTITAN] if args.torchtitan else [])
    packages = versions(python, {"metacount", "accelerate", "deepspeed", "torch", "transformers"})
    names = dict.fromkeys([TRUTH, *(args.tools or TOOLS)])
    return {
        "python": platform.python_version(),
        "versions": packages
        | {t: v for t, at in checkouts.items() if at and (v := version_of(t, at, packages))},
        "settings": [asdict(setting) for setting in SETTINGS],
        "runs": [asdict(each) for each in _runs(python, list(names), configs, checkouts)],
    }


def _runs(
    python: Path,
    tools: Sequence[str],
    configs: dict[str, dict[str, Any]],
    checkouts: dict[str, Path | None],
) -> list[Run]:
    found = []
    for setting in SETTINGS:
        for tool in tools:
            done = run(python, tool, setting, configs[setting.model], checkouts.get(tool))
            say(f"{setting.name:>2} {tool:<14} {done.cpu_seconds:6.1f} s  {_short(done)}")
            if tool == TRUTH and done.error is not None:
                raise SystemExit(f"setting {setting.name}: no truth: {done.error}")
            found.append(done)
    return found


def _short(done: Run) -> str:
    said = done.cannot or done.error
    return said or ", ".join(f"{name} {n:,}" for name, n in done.figures.items())
