"""Classes under construction: each history once, and a number for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.privacy.records.classes import Class, coarser

Numbers = npt.NDArray[np.uint32]


class Pool:
    """Classes by number; :meth:`settled` says what became of them."""

    def __init__(self, classes: Sequence[Class] = ()) -> None:
        self.classes = list(classes)
        self._numbers: dict[Any, int] = {
            one.alike: number for number, one in enumerate(self.classes)
        }
        self.blank = self.put(Class())

    def put(self, one: Class) -> int:
        """The number of a class; one that is alike becomes one that covers both."""
        number = self._numbers.setdefault(one.alike, len(self.classes))
        if number == len(self.classes):
            self.classes.append(one)
        elif self.classes[number].runs | one.runs != self.classes[number].runs:
            known = self.classes[number]
            self.classes[number] = Class(
                known.frozen, known.live, known.person, known.loose, known.runs | one.runs
            )
        return number

    def halve(self, classes: Numbers) -> bool:
        """Merge the nearest until half of those in use are left; in place.

        False if nothing can be merged.
        """
        used = np.unique(classes)
        if len(used) < 2:
            return False
        merged, places = coarser([self.classes[i] for i in used.tolist()], len(used) // 2)
        fresh = np.zeros(len(self.classes), np.uint32)
        fresh[used] = [self.put(merged[place]) for place in places]
        classes[:] = fresh[classes]
        return True

    def settled(self, classes: Numbers, at_most: int) -> tuple[Numbers, list[Class], list[int]]:
        """(The class of each entity, the classes, their entities' numbers); the blank one first."""
        sizes = np.bincount(classes, minlength=len(self.classes))
        used = [self.blank, *(i for i in np.flatnonzero(sizes).tolist() if i != self.blank)]
        tidy = Pool([self.classes[self.blank]])
        places = [tidy.put(self.classes[i]) for i in used]
        kept = tidy.classes
        if len(kept) > at_most:
            others, merged = coarser(kept[1:], at_most - 1)
            final = Pool([kept[0]])
            where = [0, *(final.put(others[place]) for place in merged)]
            places, kept = [where[place] for place in places], final.classes
        fresh = np.zeros(len(self.classes), np.uint32)
        fresh[used] = places
        again: Numbers = classes if np.array_equal(fresh[used], used) else fresh[classes]
        return again, kept, np.bincount(again, minlength=len(kept)).tolist()
