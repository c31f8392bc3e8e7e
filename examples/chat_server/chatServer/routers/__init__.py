"""What is asked over HTTP."""
# ruff: noqa: N999 - the name of its package
