"""One model through one tool, each as its own documentation says; a process of peers.py.

python peer_tools.py TOOL CONFIG.json DEVICE

Prints one line of JSON: `params`, `active_params`, `flops`, `kv_cache_bytes`, whatever of them the
tool gives. FLOPs are 2 per multiply-add; a tool that counts multiply-adds is taken twice.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BATCH_SIZE, SEQ_LEN = 1, 128

Config = dict[str, Any]
Figures = dict[str, int | None]


def built(config: Config, device: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """transformers' model of a config in bf16, on meta or with weights, and what it runs."""
    import torch
    import transformers

    names = {**config, **changes}
    kind = names.pop("model_type")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        settings = transformers.AutoConfig.for_model(kind, **names)
        model = getattr(transformers, config["architectures"][0])(settings).eval()
        tokens = torch.zeros(BATCH_SIZE, SEQ_LEN, dtype=torch.long)
    inputs = {"input_ids": tokens}
    if config.get("is_encoder_decoder"):
        inputs["decoder_input_ids"] = tokens
    return model, inputs


def torch_counter(config: Config, device: str) -> Figures:
    """`torch.utils.flop_counter`, and the usual sum over `parameters()`."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, inputs = built(config, device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "flops": counter.get_total_flops(),
    }


def calflops(config: Config, device: str) -> Figures:
    """`calculate_flops`; its `flops` holds norms and activations too, its `macs` do not."""
    import torch
    from calflops import calculate_flops

    model, inputs = built(config, device)
    with torch.no_grad():
        _, macs, params = calculate_flops(
            model, kwargs=inputs, output_as_string=False, print_results=False
        )
    return {"params": int(params), "flops": 2 * int(macs)}


def deepspeed(config: Config, device: str) -> Figures:
    """`get_model_profile`; its `flops` holds norms and activations too, its `macs` do not."""
    import torch
    from deepspeed.profiling.flops_profiler import get_model_profile

    model, inputs = built(config, device)
    with torch.no_grad():
        _, macs, params = get_model_profile(
            model, kwargs=inputs, print_profile=False, as_string=False, warm_up=0
        )
    return {"params": int(params), "flops": 2 * int(macs)}


def fvcore(config: Config, device: str) -> Figures:
    """`FlopCountAnalysis`, which counts one per multiply-add; it cannot trace a KV cache."""
    from fvcore.nn import FlopCountAnalysis, parameter_count

    model, inputs = built(config, device, use_cache=False)
    analysis = FlopCountAnalysis(model, _positional(model, inputs))
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return {"params": parameter_count(model)[""], "flops": 2 * int(analysis.total())}


def ptflops(config: Config, device: str) -> Figures:
    """`get_model_complexity_info` with its default backend for transformers, multiply-adds."""
    from ptflops import get_model_complexity_info

    model, inputs = built(config, device)
    macs, params = get_model_complexity_info(
        model,
        (SEQ_LEN,),
        input_constructor=lambda _: inputs,
        as_strings=False,
        print_per_layer_stat=False,
    )
    if macs is None:
        raise RuntimeError("returned None")
    return {"params": int(params), "flops": 2 * int(macs)}


def thop(config: Config, device: str) -> Figures:
    """`profile`, multiply-adds."""
    from thop import profile

    model, inputs = built(config, device)
    macs, params = profile(model, inputs=_positional(model, inputs), verbose=False)
    return {"params": int(params), "flops": 2 * int(macs)}


def torchinfo(config: Config, device: str) -> Figures:
    """`summary`, whose mult-adds are multiply-adds."""
    from torchinfo import summary

    model, inputs = built(config, device)
    found = summary(model, input_data=inputs, verbose=0, device=device)
    return {"params": found.total_params, "flops": 2 * found.total_mult_adds}


def accelerate(config: Config, device: str) -> Figures:
    """What `accelerate estimate-memory` computes in float32."""
    ((_, _, n_bytes, _),) = estimated(config, "float32")
    if n_bytes % 4:
        raise RuntimeError(f"{n_bytes} bytes are no whole number of float32 values")
    return {"params": n_bytes // 4}


def estimated(config: Config, dtype: str) -> Any:
    """The rows of `accelerate estimate-memory`; the look-up on the hub is replaced."""
    import tempfile

    from accelerate.commands import estimate

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        known = SimpleNamespace(config=config, library_name="transformers")
        estimate.verify_on_hub = lambda repo, token=None: known
        parser = estimate.estimate_command_parser()
        return estimate.gather_data(parser.parse_args([folder, "--dtypes", dtype]))


# llm-flops' own curated entries, where it has the model; else its reading of the config.
LLM_FLOPS_NAMES = {
    "bert-base": "google-bert/bert-base-uncased",
    "gpt2": "gpt2",
    "gpt2-xl": "gpt2-xl",
    "t5-base": "google-t5/t5-base",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "gemma-7b": "google/gemma-7b",
}


def llm_flops(config: Config, device: str) -> Figures:
    """`estimate` of the bundled model, or of its config as one from the hub would be read."""
    from llmflops import estimate, registry

    name = config["name"]
    model = LLM_FLOPS_NAMES.get(name) or registry._map_hf_config(name, config)
    found = estimate(
        model,
        batch_size=BATCH_SIZE,
        sequence_length=SEQ_LEN,
        precision="bf16",
        allow_hf_fetch=False,
    )
    return {
        "params": int(found["parameters"]),
        "active_params": int(found["active_parameters"]),
        "flops": int(found["forward_flops"]),
        "kv_cache_bytes": int(found["kv_cache"]),
    }


def metacount_count(config: Config, device: str) -> Figures:
    """`metacount count`."""
    found = _metacount("count", config)
    return {
        "params": found["params"],
        "active_params": found["active_params"],
        "flops": found["matmul_flops"],
        "kv_cache_bytes": found["kv_cache_bytes"],
    }


def metacount_verify(config: Config, device: str) -> Figures:
    """`metacount verify`: the truth the others are held against, which every witness must say."""
    found = _metacount("verify", config)
    if not found["agree"]:
        raise RuntimeError("the witnesses disagree")
    keys = {
        "params": "params",
        "active_params": "active_params",
        "flops": "matmul_flops",
        "kv_cache_bytes": "kv_cache_bytes",
    }
    said = {key: {w[name] for w in found["witnesses"]} - {None} for key, name in keys.items()}
    names = [w["name"] for w in found["witnesses"]]
    if not {"formula", "reference", "transformers"} <= set(names):
        raise RuntimeError(f"only {', '.join(names)} were asked")
    return {key: values.pop() for key, values in said.items() if len(values) == 1}


def _metacount(command: str, config: Config) -> Any:
    import tempfile

    from metacount.cli import main

    plain = {key: value for key, value in config.items() if key != "name"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(plain), encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(
                [command, str(file), "--batch", str(BATCH_SIZE), "--seq", str(SEQ_LEN), "--json"]
            )
        if code:
            raise RuntimeError(f"ended with exit code {code}")
    return json.loads(out.getvalue())


def _positional(model: Any, inputs: dict[str, Any]) -> tuple[Any, ...]:
    """The inputs for tools that take no keywords: an encoder-decoder's third one is its mask."""
    if "decoder_input_ids" in inputs:
        return (inputs["input_ids"], None, inputs["decoder_input_ids"])
    return (inputs["input_ids"],)


TOOLS: dict[str, Callable[[Config, str], Figures]] = {
    "metacount count": metacount_count,
    "metacount verify": metacount_verify,
    "torch FlopCounterMode": torch_counter,
    "calflops": calflops,
    "fvcore": fvcore,
    "deepspeed": deepspeed,
    "ptflops": ptflops,
    "thop": thop,
    "torchinfo": torchinfo,
    "accelerate": accelerate,
    "llm-flops": llm_flops,
}


def printed(count: Callable[[], dict[str, Any]]) -> None:
    """Print what a tool says as one line of JSON; its own talk goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = count()
        except Exception as error:
            # whatever a tool does, its own words are the result
            lines = str(error).strip().splitlines() or [""]
            found = {"error": f"{type(error).__name__}: {lines[0]}"}
    print(json.dumps(found))


def main() -> int:
    """Run one tool."""
    tool, file, device = sys.argv[1:]
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    printed(lambda: dict(TOOLS[tool](config, device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
