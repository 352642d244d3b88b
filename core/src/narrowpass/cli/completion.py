"""``narrowpass completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from narrowpass.errors import UsageError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(narrowpass completion bash)" in ~/.bashrc
    zsh:  eval "$(narrowpass completion zsh)" in ~/.zshrc
    fish: narrowpass completion fish > ~/.config/fish/completions/narrowpass.fish
    """  # noqa: D301  # click reads \b
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"the installed click has no completion for {shell}; upgrade click")
    script = found(ctx.find_root().command, {}, "narrowpass", "_NARROWPASS_COMPLETE")
    # Not `source()`: for bash that runs a shell to look at its version.
    click.echo(script.source_template % script.source_vars())
