"""Goes over many models in parallel processes: the files of a folder, the types of transformers."""

from __future__ import annotations
