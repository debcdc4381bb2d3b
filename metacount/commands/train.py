"""`metacount train`: what one training step computes, keeps and holds, measured or by formulas."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import (
    MODEL_HELP,
    add_input,
    add_json,
    add_settings,
    add_workload,
    request_of,
    whole_number,
)
from metacount.errors import InputError
from metacount.resolve import file_and_name, find_any, find_model
from metacount.settings.values import dtype
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, OPTIMIZERS, Setup

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result
    from metacount.training.result import Training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Setup()
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"{MODEL_HELP}; or FILE.py:NAME, a module of your own",
    )
    add_settings(parser)
    parser.set_defaults(needs_model=True)
    add_workload(parser)
    for name, known in (
        ("optimizer", OPTIMIZERS),
        ("attention", ATTENTIONS),
        ("checkpointing", CHECKPOINTINGS),
        ("loss", LOSSES),
    ):
        parser.add_argument(
            f"--{name}",
            default=getattr(default, name),
            metavar="NAME",
            help=f"{', '.join(known)} (default {getattr(default, name)})",
        )
    parser.add_argument(
        "--loss-chunks",
        type=whole_number,
        default=default.loss_chunks,
        metavar="N",
        help=f"pieces of a chunked loss (default {default.loss_chunks})",
    )
    parser.add_argument(
        "--master-weights",
        action="store_true",
        help="the optimizer updates float32 copies of 16-bit parameters",
    )
    parser.add_argument(
        "--grad-dtype",
        type=dtype,
        metavar="DTYPE",
        help="of the gradients (default: that of the parameters)",
    )
    parser.add_argument(
        "--foreach",
        action="store_true",
        help="the optimizer updates all tensors together, as is torch's default on CUDA",
    )
    parser.add_argument(
        "--lora-rank",
        type=whole_number,
        metavar="R",
        help="train adapters of this rank beside frozen linear layers",
    )
    parser.add_argument(
        "--lora-targets",
        metavar="NAME,...",
        type=_names,
        default=default.lora_targets,
        help="which layers, by their last names, or all-linear "
        f"(default {','.join(default.lora_targets)})",
    )
    parser.add_argument(
        "--freeze",
        metavar="NAME,...",
        type=_names,
        default=(),
        help="modules or parameters that are not trained, by path or last name",
    )
    add_input(parser)
    parser.add_argument(
        "--reference",
        action="store_true",
        help="of a config, our reference module instead of transformers' own",
    )
    parser.add_argument(
        "--formula", action="store_true", help="count by formulas alone, without torch"
    )
    add_json(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def run(args: argparse.Namespace) -> Result:
    setup = Setup(
        optimizer=args.optimizer,
        master_weights=args.master_weights,
        grad_dtype=args.grad_dtype,
        foreach=args.foreach,
        attention=args.attention,
        checkpointing=args.checkpointing,
        loss=args.loss,
        loss_chunks=args.loss_chunks,
        lora_rank=args.lora_rank,
        lora_targets=args.lora_targets,
        freeze=args.freeze,
    )
    file = file_and_name(args.model)
    if args.formula:
        return _by_formula(args, setup), 0
    found = _of_file(args, setup, *file) if file else _of_model(args, setup)
    from metacount.views.train import train_text

    return (json_text(found.to_dict()) if args.json else train_text(found)), 0


def _by_formula(args: argparse.Namespace, setup: Setup) -> str:
    if args.input or file_and_name(args.model):
        raise InputError(
            "FILE.py:NAME and --input have no formula: give a MODEL, or leave --formula out"
        )
    from metacount.summary.counted import count_training

    model = find_model(args.model, args.settings)
    found = count_training(model, request_of(args), setup)
    from metacount.views.train_counted import counted_data, counted_text

    if args.json:
        return json_text(counted_data(model, setup, found))
    return counted_text(model, setup, found)


def _of_model(args: argparse.Namespace, setup: Setup) -> Training:
    if args.input:
        raise InputError("--input is for FILE.py:NAME; a model of tokens takes --batch and --seq")
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.summary.training_step import train

    return train(model, request_of(args), setup, reference=args.reference)


def _of_file(args: argparse.Namespace, setup: Setup, path: str, name: str) -> Training:
    """Measure a step of a module of somebody's own; the file is run to make the module."""
    if args.settings or args.reference:
        raise InputError("--set and --reference are not for FILE.py:NAME; leave them out")
    if not args.input:
        raise InputError("FILE.py:NAME needs --input: its sizes, as in --input 2,16,64")
    prepare_for_torch()
    from metacount.summary.modules import module_of, typed_inputs
    from metacount.summary.training_step import train

    module = module_of(path, name)
    return train(module, inputs=typed_inputs(module, args.input), setup=setup)
