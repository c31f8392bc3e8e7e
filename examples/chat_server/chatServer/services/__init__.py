"""The job queue, its runner, its handlers, and the services that do the work."""
# ruff: noqa: N999 - the name of its package
