"""A finished run behind a local page and a JSON API."""
