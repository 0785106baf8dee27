"""What records have been in, asked of a ledger that stays as it is: for plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import added, history, maximal
from sordino.privacy.records.group import CLIENT, SAMPLE, Counts, Spent, translated
from sordino.privacy.records.identity import Records, digests, name_of
from sordino.privacy.records.people import MIXED, PEOPLE
from sordino.privacy.records.price import SHOWN, of_own_client, since


def _sum(parts: Sequence[Counts]) -> Counts:
    return reduce(added, parts, {})


def histories(ledger: Ledger, wanted: Sequence[Records]) -> dict[str, tuple[Spent, ...]]:
    """What bounds the records of each unit, as if its set were open; its price is the highest."""
    db = ledger.connection
    ledger.refresh()
    if not store.knows_records(db):
        return {each.unit: ((),) for each in wanted}
    key, index = bytes.fromhex(store.meta(db, "key")), store.index(db)
    classes, _ = store.classes(db)
    totals = since(ledger, {one.number: one for one in store.sets(db)}, None)
    spent = [history(one, totals) for one in classes]
    found: dict[str, tuple[Spent, ...]] = {}
    for each in wanted:
        rows = np.stack([digests(key, each.rows[:, 0]), digests(key, each.rows[:, 1])], axis=1)
        people = None if each.people is None else digests(key, each.people ^ PEOPLE)
        whole, own = index.rows.find(rows[:, 0]), index.rows.find(rows[:, 1])
        # A row that is known under two names was in all that either was in. One that is nobody's
        # has the class -1.
        every = index.classes.astype(np.int64)
        pairs = np.stack(
            [np.where(at >= 0, every[at], -1) if len(every) else at for at in (whole, own)], axis=1
        )
        pairs[whole == own, 1] = -1
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        known: list[tuple[Counts, int]] = []
        for (one, other), size in zip(distinct.tolist(), counts.tolist(), strict=True):
            parts = [place for place in (one, other) if place >= 0]
            counted: Counts = _sum([spent[place] for place in parts])
            if people is not None and any(classes[place].loose for place in parts):
                counted = added(counted, {(MIXED, SAMPLE, 1): 1})
            known.append((counted, size))
        if people is not None:
            persons = index.people.find(np.unique(people))
            known += [
                (spent[place], 1)
                for place in np.unique(index.classes[persons[persons >= 0]]).tolist()
            ]
        if each.kind == CLIENT:
            name = name_of(replace(each, rows=rows, people=people), rows, people)
            booked = ledger.spent(name) if name in ledger.units() else ()
            found[each.unit] = (of_own_client(booked, known),)
        else:
            found[each.unit] = tuple(
                translated(one, each.kind)
                for one in maximal([counts for counts, _ in known], SHOWN)
            ) or ((),)
    return found
