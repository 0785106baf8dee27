"""Every registered method, in every form, keeps the public contract; and the contract sees those
that do not.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, ClassVar, Literal

import pytest

from sordino.core.method import About, ContractBroken, check_method, known
from sordino.regimes.synchronous.method import Choice, SynchronousMethod
from sordino.regimes.vertical.method import OnlineMethod

FORMS = [
    (name, form)
    for name, kind in known().items()
    for form in (("sound", "paper") if "form" in kind.model_fields else ("sound",))
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_method_keeps_the_contract(name: str, form: str) -> None:
    kind = known()[name]
    check_method(kind(form=form) if "form" in kind.model_fields else kind())  # type: ignore[call-arg]
    noiseless = kind.about.units == ("none",)
    assert set(kind.about.forms) == (
        {"sound", "paper"} if "form" in kind.model_fields else {"plain" if noiseless else "sound"}
    )


class Bad(SynchronousMethod):
    about: ClassVar[About] = About(regime="synchronous", paper="", does="", forms={"sound": True})
    name: Literal["bad"] = "bad"

    def choose(self, memory: Any, terms: Any, left: Any) -> Choice:
        return Choice(1)


def test_the_contract_sees_what_is_wrong() -> None:
    counter = itertools.count(1)

    class Fickle(Bad):
        def choose(self, memory: Any, terms: Any, left: Any) -> Choice:
            return Choice(next(counter))

    class Backwards(Bad):
        def choose(self, memory: Any, terms: Any, left: Any) -> Choice:
            return Choice(-1)

    class Unsteady(Bad):
        @property
        def fixed_tau(self) -> int:
            return 2

    class Forgetful(Bad):
        def fold(self, memory: Any, terms: Any, answers: Any) -> Any:
            return {"round": 1}

    class Meddling(Bad):
        def fold(self, memory: Any, terms: Any, answers: Any) -> Any:
            if answers:
                answers[0].weights[:] = 0
            return memory

    check_method(Bad())
    for kind, message in (
        (Fickle, "answers differently"),
        (Backwards, "whole number"),
        (Unsteady, r"'bad': choose gave .*Choice\(2\), as fixed_tau says.* fixed_tau of None"),
        (Forgetful, "declares"),
        (Meddling, "changed"),
    ):
        with pytest.raises(ContractBroken, match=message):
            check_method(kind())


class Online(OnlineMethod):
    about: ClassVar[About] = About(
        regime="vertical", paper="", does="", forms={"sound": True}, units=("none",)
    )
    name: Literal["online"] = "online"


def _always(value: Any, self: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"window": 0}, "a window of 0 events"),
        ({"attenuation": 0.0}, "at attenuation 0.0"),
        ({"attenuation": 1.5}, "at attenuation 1.5"),
        ({"window": 5, "resends": 3}, "sends 3 examples an event, and its window holds 5"),
        ({"window": 5, "replays": True, "attenuation": 0.9}, "count alike"),
    ],
)
def test_the_contract_sees_a_window_that_cannot_be(told: dict[str, Any], message: str) -> None:
    check_method(Online())
    broken = type(
        "Broken",
        (Online,),
        {name: property(partial(_always, value)) for name, value in told.items()},
    )
    with pytest.raises(ContractBroken, match=message):
        check_method(broken())
