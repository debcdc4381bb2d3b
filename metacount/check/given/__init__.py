"""Takes what somebody wrote - a text, a function, a file - and calls it with sizes."""

from __future__ import annotations
