"""The backend that decides which results are right: all others are compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass.errors import PluginError
from narrowpass.framework.plugins import installed_plugins

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Backend


def oracle() -> Backend:
    """Return the installed backend that states that it is an oracle: `Backend.is_oracle`.

    Raises:
        PluginError: there is none, or there are several.
    """
    backends = installed_plugins().registry.backends
    oracles = [name for name, backend in sorted(backends.items()) if backend.is_oracle]
    if len(oracles) == 1:
        return backends[oracles[0]]
    raise PluginError(
        f"results are compared on one oracle, a backend with is_oracle = True; "
        f"of these: {', '.join(oracles) or 'none'}; of the installed backends: "
        f"{', '.join(sorted(backends)) or 'none'}; the repository's README has the command that "
        "installs one"
    )
