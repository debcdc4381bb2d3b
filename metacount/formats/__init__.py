"""Descriptions of a model that are no config.json: read as data, each by its own keys, never run.

A file is told by its name where that is enough, else by its keys.
"""

from __future__ import annotations

PARAMS = "params.json"  # what Meta and Mistral call the description beside their weights
GGUF, PYTHON = ".gguf", ".py"
ARGUMENTS = (".sh", ".args")
ENDINGS = (GGUF, PYTHON, *ARGUMENTS)
OWN_TYPE = "transformer"  # the model_type of a params.json of Mistral's; no type of transformers
