"""What narrowpass itself registers: the standard instruments."""

from __future__ import annotations

from narrowpass.framework.instruments import Instrument


def narrowpass_instruments() -> list[type[Instrument]]:
    """Return the instruments that the options of ``narrowpass build`` stand for."""
    from narrowpass.framework.instruments.dump import Dump
    from narrowpass.framework.instruments.printing import PrintAfterChange
    from narrowpass.framework.instruments.reproducer import Reproducer
    from narrowpass.framework.instruments.statistics import Statistics
    from narrowpass.framework.instruments.timing import Timing

    return [Dump, PrintAfterChange, Reproducer, Statistics, Timing]
