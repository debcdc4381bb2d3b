"""Step 3: builds the model at other sizes, where the form must give what is measured."""

from __future__ import annotations
