"""Sessions in a forked child, also while a thread of the parent holds their locks."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from masks_kit import Reference, assert_close, decoder, feeds_of
from xnn_kit import compile_model

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_child_goes_on_with_the_state_of_its_parent():
    model = decoder("added")
    reference = Reference(model)
    with compile_model(model) as program, program.session() as session:
        for step, rows in enumerate((5, 1)):
            feeds = feeds_of("added", rows, session.length, step)
            session.run(feeds)
            reference.run(feeds)
        feeds = feeds_of("added", 1, session.length, 9)
        wanted = reference.run(feeds)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with session._lock, program.forking:
                held.set()
                release.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(60)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(30)  # a lock of the parent would never be released here
            try:
                os.write(writing, session.run(feeds)["y"].tobytes())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            found = np.frombuffer(file.read(), np.float32).reshape(wanted.shape)
        os.waitpid(child, 0)
        release.set()
        holder.join()
        assert_close(found, wanted)
        assert session.length == 6
        assert_close(session.run(feeds)["y"], wanted)
