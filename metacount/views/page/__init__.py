"""One page for a browser: closed forms of models, evaluated at sizes that a reader chooses."""

from __future__ import annotations

from metacount.views.page.document import page_html as page_html
