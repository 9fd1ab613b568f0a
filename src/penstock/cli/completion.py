"""`penstock completion SHELL`: print what makes a shell complete penstock's commands, options and files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from penstock.cli.main import COMPLETING


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.", show_default=False)]) -> None:
    """Print a script for the shell's start-up file: eval "$(penstock completion bash)" in ~/.bashrc.

    For zsh the same in ~/.zshrc; for fish, write it to ~/.config/fish/completions/penstock.fish.
    """
    typer.echo(get_completion_script(prog_name="penstock", complete_var=COMPLETING, shell=shell.value))
