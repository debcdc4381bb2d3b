"""The layers that are timed, a file for each topic: their variants and the cases of a model."""
