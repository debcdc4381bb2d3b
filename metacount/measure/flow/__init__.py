"""A forward in the order in which it ran: recorded, told in steps, its sizes named by letters."""

from __future__ import annotations
