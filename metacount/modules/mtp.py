"""Runs multi-token-prediction modules: they predict the tokens after the next one.

DeepSeek-V3, arXiv:2412.19437, sec. 2.2, eq. 21 to 23. Module k reads what stands below it, the
model's hidden states or module k - 1's, and the token k places further on:

    x = eh_proj · [enorm(embedding of that token); hnorm(hidden state)]
    y = layer(x)                    which the next module reads
    logits = head · norm(y)         of the token after that

The paper writes the hidden state first; the eh_proj of its checkpoint, and so this one, reads the
embedding first. Embedding and head are the model's own. Each layer sees all that came before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metacount.modules.attention import Visibility
from metacount.modules.block import Block
from metacount.modules.cache import Cache, LayerCache
from metacount.modules.linear import Linear
from metacount.modules.model import Model
from metacount.modules.norm import make_norm
from metacount.spec import ModelSpec
from metacount.spec.model import prediction_layers


class PredictionModule(nn.Module):
    """One module without the embedding and the head; `spec` is that of `prediction_layers`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        d_model, norms = spec.d_model, spec.last_stack.norms
        self.enorm = make_norm(norms, d_model)
        self.hnorm = make_norm(norms, d_model)
        self.eh_proj = Linear(2 * d_model, d_model, bias=False)
        self.layer = Block(spec, 0)
        self.norm = make_norm(norms, d_model)

    def forward(
        self,
        hidden_BSD: Tensor,
        next_BSD: Tensor,
        *,
        cache: LayerCache | None = None,
        absorbed: bool = False,
    ) -> Tensor:
        """Mix hidden states and embeddings of the next tokens, [B, S, D] each -> [B, S, D]."""
        start, n = (cache.length if cache else 0), hidden_BSD.shape[1]
        sees = Visibility(n_queries=n, n_keys=start + n, query_start=start, kind="causal")
        both_BSE = torch.cat([self.enorm(next_BSD), self.hnorm(hidden_BSD)], dim=-1)
        x_BSD = self.eh_proj(both_BSE)
        return self.layer(x_BSD, sees, cache=cache, absorbed=absorbed)


class MultiTokenPrediction(nn.Module):
    """All prediction modules of a model, which stays what it is: `main` lends its two ends."""

    def __init__(self, main: Model) -> None:
        super().__init__()
        modules = main.spec.prediction
        if modules is None:
            raise ValueError("n_mtp_layers is None: this model has no prediction modules")
        self.main = main
        own = prediction_layers(main.spec)
        self.layers = nn.ModuleList(PredictionModule(own) for _ in range(modules.n_modules))

    @property
    def each(self) -> list[PredictionModule]:
        """Give the modules as what they are: `nn.ModuleList` forgets."""
        return [module for module in self.layers if isinstance(module, PredictionModule)]

    def new_cache(self) -> Cache:
        """Make an empty cache of the modules' layers."""
        return Cache([None for _ in self.layers])

    def forward(
        self,
        hidden_BSD: Tensor,
        next_tokens: Tensor,
        *,
        cache: Cache | None = None,
        absorbed: bool = False,
    ) -> tuple[Tensor, ...]:
        """Turn hidden states [B, S, D] and the tokens after into each module's logits [B, S, V].

        `hidden_BSD` is the model's, as `Output` has it. `next_tokens` are [B, S + n_modules - 1]:
        the token after each position, and as many more as there are further modules, each of which
        reads one place further on.
        """
        n, found = hidden_BSD.shape[1], []
        for k, module in enumerate(self.each):
            hidden_BSD = module(
                hidden_BSD,
                self.main.embed(next_tokens[:, k : k + n]),
                cache=cache.layers[k] if cache else None,
                absorbed=absorbed,
            )
            logits_BSV = self.main.logits(module.norm(hidden_BSD))
            assert logits_BSV is not None  # the spec requires a head
            found.append(logits_BSV)
        return tuple(found)
