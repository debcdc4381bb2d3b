"""Files in the shape of safetensors, with any header at all."""

from __future__ import annotations

import json
import struct
from pathlib import Path

U8 = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}


def written(path: Path, header: object, data: bytes = b"", length: int | None = None) -> str:
    """A safetensors file with any header and any claim of its length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return str(path)
