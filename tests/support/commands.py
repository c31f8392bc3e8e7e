"""Commands that pages and deployment files name."""

from collections.abc import Sequence

from treadle.cli.commands import command


def check_command(words: Sequence[str]) -> None:
    """See that `treadle` has this command, and the command its options."""
    program, *rest = words
    assert program == "treadle", words
    found = command()
    while rest and rest[0] in getattr(found, "commands", {}):
        found = found.commands[rest.pop(0)]  # type: ignore[attr-defined]
    assert not hasattr(found, "commands"), words
    known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}  # type: ignore[attr-defined]
    assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known, words
