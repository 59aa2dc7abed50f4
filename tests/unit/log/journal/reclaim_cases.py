"""The matrices that the reclaiming of the original was tested with: adds a file holds, what each file cancels in the others, and which may go.

One row a file: how many of its records live or lived, then how many records of file 0, 1, 2 it cancels. Last, which files may go. The names say what
the files can: `can-cant-can` is three files of which the middle one must stay.
"""

from __future__ import annotations

Row = tuple[int, ...]

RECLAIM_CASES: dict[str, tuple[tuple[Row, ...], tuple[bool, ...]]] = {
    "one file: all cancelled by itself": (((10, 10),), (True,)),
    "one file: seven of ten cancelled": (((10, 7),), (False,)),
    "one file: nothing cancelled": (((10,),), (False,)),
    "one file: it only cancels": (((0, 10),), (True,)),
    "two files: the second cancels the first": (((10,), (0, 10)), (True, True)),
    "two files: each cancels itself": (((10, 10), (10, 0, 10)), (True, True)),
    "two files: both cancel the first": (((10, 7), (10, 3, 10)), (True, True)),
    "two files: the first cancels itself": (((10, 10), (10,)), (True, False)),
    "two files: the second cancels itself": (((10,), (10, 0, 10)), (False, True)),
    "two files: nothing cancelled": (((10,), (10,)), (False, False)),
    "two files: the second lives and cancels the first": (((10,), (10, 10)), (True, False)),
    "can-can-can: each cancels itself": (((10, 10), (10, 0, 10), (10, 0, 0, 10)), (True, True, True)),
    "can-can-can: by two of them": (((10, 7), (10, 3, 5), (10, 0, 5, 10)), (True, True, True)),
    "can-can-can: by all of them": (((10, 1), (10, 6, 5), (10, 3, 5, 10)), (True, True, True)),
    "can-can-can: the last only cancels": (((10, 1), (10, 6, 5), (0, 3, 5)), (True, True, True)),
    "can-can-can: two only cancel": (((10, 1), (0, 6), (0, 3)), (True, True, True)),
    "cant-can-can: the first in part": (((10, 3), (10, 0, 5), (10, 0, 5, 10)), (False, True, True)),
    "cant-can-can: the last only cancels the second": (((10, 3), (10, 0, 5), (0, 0, 5)), (False, True, True)),
    "cant-can-can: nothing of the first, the last cancels more than it holds": (((10,), (10, 0, 5), (0, 0, 5, 10)), (False, True, True)),
    "cant-can-can: nothing of the first": (((10,), (10, 0, 5), (0, 0, 5)), (False, True, True)),
    "cant-can-cant: all but the second in part": (((10, 3), (10, 0, 10), (10, 0, 0, 2)), (False, True, False)),
    "cant-can-cant: the last cancels in the first and itself": (((10, 3), (10, 0, 10), (10, 1, 0, 2)), (False, True, False)),
    "cant-can-cant: the last cancels in the first": (((10, 3), (10, 0, 10), (10, 1)), (False, True, False)),
    "cant-can-cant: only the second cancelled": (((10,), (10, 0, 10), (10,)), (False, True, False)),
    "cant-can-cant: the last only cancels, in a file that stays": (((10,), (10, 0, 10), (0, 3)), (False, True, False)),
    "cant-cant-cant: all in part": (((10, 3), (10, 2, 3), (10, 1, 5, 7)), (False, False, False)),
    "cant-cant-cant: the second only cancels": (((10, 3), (0, 2), (10, 1, 0, 7)), (False, False, False)),
    "cant-cant-cant: the last only cancels, in both": (((10, 3), (10, 2, 3), (0, 1, 5)), (False, False, False)),
    "cant-cant-cant: two only cancel, not enough": (((10, 3), (0, 2), (0, 1)), (False, False, False)),
    "cant-cant-cant: the last cancels in all": (((10, 3), (10, 0, 3), (10, 1, 5, 7)), (False, False, False)),
    "cant-cant-cant: the last cancels in the first and itself": (((10, 3), (10, 0, 3), (10, 1, 0, 7)), (False, False, False)),
    "cant-cant-cant: the last cancels in the first": (((10, 3), (10, 0, 3), (10, 1)), (False, False, False)),
    "cant-cant-cant: only the first is cancelled in part": (((10, 3), (10,), (10, 1)), (False, False, False)),
    "cant-cant-cant: nothing cancelled": (((10,), (10,), (10,)), (False, False, False)),
    "can-can-cant: the last lives": (((10, 10), (10, 0, 10), (10,)), (True, True, False)),
    "can-can-cant: the last cancels what is cancelled": (((10, 10), (10, 0, 10), (10, 3)), (True, True, False)),
    "can-can-cant: more is cancelled than there is": (((10, 7), (10, 3, 10), (10, 3)), (True, True, False)),
    "can-can-cant: the second only cancels, and in itself": (((10, 7), (0, 3, 10), (10, 3)), (True, True, False)),
    "can-can-cant: the last lives alone": (((10, 7), (0, 3, 10), (10,)), (True, True, False)),
    "can-cant-cant: only the first is cancelled": (((10, 10), (10,), (10,)), (True, False, False)),
    "can-cant-cant: the others in part": (((10, 10), (10, 0, 3), (10, 0, 0, 5)), (True, False, False)),
    "can-cant-cant: the others in part, by both": (((10, 10), (10, 0, 3), (10, 0, 6, 5)), (True, False, False)),
    "can-cant-cant: the last only cancels, not enough": (((10, 10), (10, 0, 3), (0, 0, 6)), (True, False, False)),
}
