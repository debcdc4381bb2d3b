"""What Gemma 3n puts around and beside its blocks: AltUp, LAuReL, an embedding of each layer."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import MAX_VOCAB, part, size

MAX_INPUTS = 256  # copies of the residual stream, each as large as the stream


@part
class AltUp:
    """Copies of the residual stream, of which a block computes one and predicts the others."""

    n_inputs: int = size(
        "n_altup_inputs",
        "a",
        "copies of the residual stream; a block computes one and predicts the others",
        "copies",
        "altup_num_inputs",
        most=MAX_INPUTS,
    )
    active: int = size(
        "altup_active",
        "a_0",
        "the copy that a block computes, from 0",
        "copies",
        "altup_active_idx",
        default=0,
        least=0,
        most=MAX_INPUTS,
    )

    def check(self) -> None:
        """Raise `SpecError` for a copy that there is not."""
        if self.active >= self.n_inputs:
            raise SpecError(
                "altup_active",
                f"must be below n_altup_inputs = {self.n_inputs}: copies are numbered from 0",
                self.active,
                f"choose 0 to {self.n_inputs - 1}",
            )


@part
class Laurel:
    """A second residual of low rank around each attention."""

    rank: int = size(
        "laurel_rank",
        "r_l",
        "rank of the residual beside each attention",
        "values",
    )


@part
class LayerInputs:
    """An embedding of the token for each layer, which a gate lets in behind the layer."""

    needed = "by d_per_layer"

    width: int = size(
        "d_per_layer",
        "d_p",
        "width of each layer's own embedding of the token",
        "values",
        "hidden_size_per_layer_input",
    )
    vocab_size: int = size(
        "vocab_size_per_layer",
        "V_p",
        "rows of the table of each layer's own embeddings; a token beyond them reads row 0",
        "rows",
        "vocab_size_per_layer_input",
        most=MAX_VOCAB,
    )
