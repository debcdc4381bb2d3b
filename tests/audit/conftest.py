"""The whole audit, once for all of its tests."""

from __future__ import annotations

import pytest

from metacount.audit.report import Audited, audit


@pytest.fixture(scope="session")
def audits() -> tuple[Audited, ...]:
    """Every formula at every model of the catalog."""
    return audit()
