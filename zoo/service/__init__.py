"""The web service: tags documents over HTTP, and serves a page for people."""
