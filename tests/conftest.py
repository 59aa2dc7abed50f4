"""How property tests choose their examples.

`make test` and a plain `pytest` derive the examples from the test's own code, so that a run passes or fails the same way everywhere. `make explore`
loads the profile `explore`, which draws new examples at each run; what it finds goes into the test as an `@example`.
No example has a deadline: how long one needs says more about what else the machine does."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("default", derandomize=True, print_blob=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """Excludes what was imported and collected from garbage collection. The collector would search all of it again and again, and find nothing: an
    eighth of the processor time of the unit tests. What a test makes mostly needs no collector either, so it runs less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
