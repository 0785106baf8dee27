"""Progress of a run while it goes on: console, pages of a browser, trackers."""
