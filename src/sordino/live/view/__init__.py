"""A run in one's own browser while it goes on, and runs that have ended; this machine only."""

from __future__ import annotations

from sordino.live.view.loopback import Answer, Loopback
from sordino.live.view.site import Live, view

__all__ = ["Answer", "Live", "Loopback", "view"]
