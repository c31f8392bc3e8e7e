"""`treadle completion`: what a shell needs to complete commands and options; and the answers to its questions."""

import os
from typing import Annotated, Literal

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined] # not in its __all__

from treadle.cli import options
from treadle.cli.terminal import document, say

PROGRAM = "treadle"
VARIABLE = "_TREADLE_COMPLETE"  # set by the script when the shell asks
Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.", show_default=False)],
    as_json: options.Json = False,
) -> None:
    """Print a script that lets your shell complete commands and options.

    For bash, put this into ~/.bashrc: eval "$(treadle completion bash)". For zsh the same into ~/.zshrc, after
    compinit. For fish: treadle completion fish > ~/.config/fish/completions/treadle.fish
    """
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)
    document({"shell": shell, "script": script}) if as_json else say(script)


def prepare() -> None:
    """Let the command answer, if it is a shell that asks."""
    if VARIABLE in os.environ:
        completion_init()
