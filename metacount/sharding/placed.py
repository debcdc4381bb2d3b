"""Where accelerate places the parts of a module: on devices, in the memory of the CPU, on disk.

The module is built on meta; accelerate decides by the sizes of its tensors alone. What each place
holds is counted here tensor by tensor, and laid beside the sum of accelerate's own sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from metacount.errors import InputError
from metacount.given import Model
from metacount.measure.theirs import silent
from metacount.spec import DTYPE_BYTES
from metacount.tensors import DTYPES
from metacount.units import exact

if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.given import TransformersOnly
    from metacount.sharding.fit import Device

CPU, DISK = "cpu", "disk"


def place_module(
    model: Model | TransformersOnly,
    devices: Sequence[Device],
    *,
    device_map: str = "auto",
    cpu_memory: int = 0,
    dtype: str = "bf16",
) -> Json:
    """Ask accelerate where each part of a model's module goes.

    The module is transformers' own of a config, else our reference module; `cpu_memory` in bytes.

    Returns: `parts`, on which place each is, by its path; `places`, what each holds in bytes
    (`room` None: no limit; `accelerate_bytes` by accelerate's own sizes); `formula_bytes`, all
    parameters by formula, in the type that the module has; `differences` between these sums.
    Raises `InputError` for a dtype that no module is built in.
    """
    if dtype not in DTYPES:
        raise InputError(
            f"--device-map builds the module: --dtype {dtype} is not one that it is built in; "
            f"choose one of {', '.join(DTYPES)}"
        )
    module, title, unsplit = _built(model, dtype)
    room: dict[int | str, int] = {i: device.room for i, device in enumerate(devices)}
    version, parts, sizes = _mapped(module, room | {CPU: cpu_memory}, unsplit, device_map)
    rows: dict[str, tuple[str, int | None]] = {
        str(i): (device.id, device.room) for i, device in enumerate(devices)
    }
    rest: dict[str, int | None] = {CPU: cpu_memory, DISK: None}
    rows |= {key: (key, size) for key, size in rest.items() if key in parts.values()}
    held = {key: {"param_bytes": 0, "buffer_bytes": 0} for key in rows}
    for kind, tensors in (
        ("param_bytes", module.named_parameters()),
        ("buffer_bytes", module.named_buffers()),
    ):
        for path, tensor in tensors:
            place = next(parts[part] for part in _around(path) if part in parts)
            held[place][kind] += tensor.numel() * tensor.element_size()
    places: list[Json] = []
    for key, (name, size) in rows.items():
        theirs = sum(sizes[part] for part, place in parts.items() if place == key)
        row = {"id": key, "name": name, "room": size, **held[key], "accelerate_bytes": theirs}
        places.append(row | {"bytes": sum(held[key].values())})
    formula = None
    if isinstance(model, Model):
        from metacount.formulas.model import params

        formula = int(params(model.spec)) * DTYPE_BYTES[dtype]
    return {
        "module": title,
        "device_map": device_map,
        "dtype": dtype,
        "accelerate": version,
        "fits": DISK not in parts.values(),
        "param_bytes": sum(place["param_bytes"] for place in places),
        "buffer_bytes": sum(place["buffer_bytes"] for place in places),
        "formula_bytes": formula,
        "places": places,
        "parts": parts,
        "differences": _differences(places, formula, dtype),
    }


def _differences(places: Sequence[Json], formula: int | None, dtype: str) -> list[str]:
    differences = [
        f"{place['id']} holds {exact(place['bytes'])} bytes by our count, "
        f"{exact(place['accelerate_bytes'])} by accelerate's sizes"
        for place in places
        if place["bytes"] != place["accelerate_bytes"]
    ]
    total = sum(place["param_bytes"] for place in places)
    if formula not in (None, total):
        differences.append(
            f"all parameters of the module are {exact(total)} bytes; by formula, in "
            f"{dtype}, they are {exact(formula or 0)}"
        )
    return differences


def _built(model: Model | TransformersOnly, dtype: str) -> tuple[nn.Module, str, list[str]]:
    """Build the module on meta; return it, what it is, and which of its classes stay whole."""
    if isinstance(model, Model) and (model.source is None or model.refused):
        from metacount.modules.block import Block
        from metacount.modules.build import build

        return build(model.spec, dtype=dtype), "our reference module", [Block.__name__]
    from metacount.huggingface.module.model import build_transformers

    assert model.source is not None  # what has no formula has a config
    module, choice = build_transformers(model.source, dtype=DTYPES[dtype])
    unsplit = getattr(module, "_no_split_modules", None) or ()
    return module, f"transformers' {choice.class_name}", sorted(unsplit)


def _mapped(
    module: nn.Module, room: dict[int | str, int], unsplit: list[str], device_map: str
) -> tuple[str, dict[str, str], Mapping[str, int]]:
    """Call accelerate; return its version, which part is where, and its size of each part."""
    with silent():  # it warns that this machine does not have the devices
        import accelerate
        from accelerate.utils import compute_module_sizes, get_balanced_memory

        if device_map == "auto":
            try:
                room = get_balanced_memory(module, dict(room), no_split_module_classes=unsplit)
            except RuntimeError as error:  # releases before 1.15 look for the devices themselves
                raise InputError(
                    f"--device-map auto of accelerate {accelerate.__version__} wants the devices "
                    "on this machine; choose --device-map sequential, or install accelerate 1.15"
                ) from error
        placed = accelerate.infer_auto_device_map(
            module, dict(room), no_split_module_classes=unsplit
        )
        sizes = compute_module_sizes(module)
    return accelerate.__version__, {part: str(place) for part, place in placed.items()}, sizes


def _around(path: str) -> Iterable[str]:
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path
