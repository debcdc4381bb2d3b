"""Where accelerate places the parts of a module: on devices, in the memory of the CPU, on disk.

The module is built on meta; accelerate decides by the sizes of its tensors alone. What each place
holds is counted here tensor by tensor, and laid beside the sum of accelerate's own sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Place:
    """What one device, the CPU or the disk holds; `room` None: no limit.

    `accelerate_bytes` is the sum of accelerate's sizes of the parts that it placed here.
    """

    id: str
    name: str
    room: int | None
    param_bytes: int
    buffer_bytes: int
    accelerate_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return self.param_bytes + self.buffer_bytes

    def to_dict(self) -> Json:
        """Return the place as plain data."""
        return {**vars(self), "bytes": self.bytes}


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A module on devices: `parts` says on which each part is, by its path in the module.

    `formula_bytes` are all parameters by formula, in the type that the module has; None without.
    """

    module: str
    device_map: str
    dtype: str
    accelerate: str
    places: tuple[Place, ...]
    parts: dict[str, str]
    formula_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether nothing is left for the disk."""
        return DISK not in self.parts.values()

    @property
    def differences(self) -> list[str]:
        """Say where two sums that should be equal are not."""
        found = [
            f"{place.id} holds {exact(place.bytes)} bytes by our count, "
            f"{exact(place.accelerate_bytes)} by accelerate's sizes"
            for place in self.places
            if place.bytes != place.accelerate_bytes
        ]
        whole = sum(place.param_bytes for place in self.places)
        if self.formula_bytes is not None and whole != self.formula_bytes:
            found.append(
                f"all parameters of the module are {exact(whole)} bytes; by formula, in "
                f"{self.dtype}, they are {exact(self.formula_bytes)}"
            )
        return found

    def to_dict(self) -> Json:
        """Return what is where as plain data."""
        return {
            "module": self.module,
            "device_map": self.device_map,
            "dtype": self.dtype,
            "accelerate": self.accelerate,
            "fits": self.fits,
            "param_bytes": sum(place.param_bytes for place in self.places),
            "buffer_bytes": sum(place.buffer_bytes for place in self.places),
            "formula_bytes": self.formula_bytes,
            "places": [place.to_dict() for place in self.places],
            "parts": self.parts,
            "differences": self.differences,
        }


def place_module(
    model: Model | TransformersOnly,
    devices: Sequence[Device],
    *,
    device_map: str = "auto",
    cpu_memory: int = 0,
    dtype: str = "bf16",
) -> Placed:
    """Ask accelerate where each part of a model's module goes.

    The module is transformers' own of a config, else our reference module; `cpu_memory` in bytes.
    Raises `InputError` for a dtype that no module is built in.
    """
    if dtype not in DTYPES:
        raise InputError(
            f"--device-map builds the module: --dtype {dtype} is not one that it is built in; "
            f"choose one of {', '.join(DTYPES)}"
        )
    module, title, unsplit = _built(model, dtype)
    room: dict[int | str, int] = {i: device.room for i, device in enumerate(devices)}
    room[CPU] = cpu_memory
    version, parts, sizes = _mapped(module, room, unsplit, device_map)
    rows = [(str(i), device.id, device.room) for i, device in enumerate(devices)]
    used = [(CPU, CPU, cpu_memory)] if CPU in parts.values() else []
    held = {key: [0, 0] for key in (*(key for key, *_ in rows), CPU, DISK)}
    for kind, tensors in enumerate((module.named_parameters(), module.named_buffers())):
        for path, tensor in tensors:
            place = next(parts[part] for part in _around(path) if part in parts)
            held[place][kind] += tensor.numel() * tensor.element_size()
    places = tuple(
        Place(
            id=key,
            name=name,
            room=size,
            param_bytes=held[key][0],
            buffer_bytes=held[key][1],
            accelerate_bytes=sum(sizes[part] for part, place in parts.items() if place == key),
        )
        for key, name, size in (
            *rows,
            *used,
            *([(DISK, DISK, None)] if DISK in parts.values() else []),
        )
    )
    formula = None
    if isinstance(model, Model):
        from metacount.formulas.model import params

        formula = int(params(model.spec)) * DTYPE_BYTES[dtype]
    return Placed(
        module=title,
        device_map=device_map,
        dtype=dtype,
        accelerate=version,
        places=places,
        parts=parts,
        formula_bytes=formula,
    )


def _built(model: Model | TransformersOnly, dtype: str) -> tuple[nn.Module, str, list[str]]:
    """Build the module on meta; return it, what it is, and which of its classes stay whole."""
    if isinstance(model, Model) and (model.source is None or model.refused):
        from metacount.modules.block import Block
        from metacount.modules.build import build

        return build(model.spec, dtype=dtype), "our reference module", [Block.__name__]
    from metacount.huggingface.module.model import build_transformers

    assert model.source is not None  # what has no formula has a config
    module, choice = build_transformers(model.source, dtype=DTYPES[dtype])
    whole = getattr(module, "_no_split_modules", None) or ()
    return module, f"transformers' {choice.class_name}", sorted(whole)


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
        found = accelerate.infer_auto_device_map(
            module, dict(room), no_split_module_classes=unsplit
        )
        sizes = compute_module_sizes(module)
    return accelerate.__version__, {part: str(place) for part, place in found.items()}, sizes


def _around(path: str) -> Iterable[str]:
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path
