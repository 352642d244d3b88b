"""What narrowpass itself registers: the standard instruments."""

from __future__ import annotations

from narrowpass.instruments import Instrument


def narrowpass_instruments() -> list[type[Instrument]]:
    """Give the instruments that the options of ``narrowpass build`` stand for."""
    from narrowpass.instruments.dump import Dump
    from narrowpass.instruments.printing import PrintAfterChange
    from narrowpass.instruments.reproducer import Reproducer
    from narrowpass.instruments.statistics import Statistics
    from narrowpass.instruments.timing import Timing

    return [Dump, PrintAfterChange, Reproducer, Statistics, Timing]
