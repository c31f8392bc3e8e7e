"""A chat server whose background work is one table `jobs` and one runner."""
# ruff: noqa: N999 - the name of its package
