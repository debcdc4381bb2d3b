"""Step 2: solves for the sizes that the run made numbers of, and for the law of the layers."""

from __future__ import annotations
