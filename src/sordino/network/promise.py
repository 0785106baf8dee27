"""What a site would release by joining: in plain words, before it connects to anybody."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.core import regimes
from sordino.core.promise import adjacency, assumptions
from sordino.core.study.base import Study
from sordino.network import certificates, transport
from sordino.network.agreement import Agreed
from sordino.network.session import JoinOptions, opened, unchecked
from sordino.privacy.rounding import epsilon_text


def promised(options: JoinOptions) -> Iterator[str]:
    """What would be released, to whom, at what price, and what stays; line by line."""
    agreed, index, study, own = opened(options)
    agreement, part = agreed.agreement, agreed.network
    ends = certificates.expires(certificates.read_certificate(options.kit, "site.pem"))
    yield f"You would join {agreement.name} as site {agreement.names[index]}, with {len(own)} rows."
    if transport.of(agreement.transport).brokered:
        yield (
            f"To whom: the federation's server, through the broker at {agreement.server}, which "
            "reads what passes and says who has sent it. The federation's authority certified both."
        )
    else:
        yield (
            f"To whom: the server at {agreement.server}, which the federation's authority "
            "certified."
        )
    others = [name for name in agreement.names if name != agreement.names[index]]
    yield f"Who else takes part: {', '.join(others) or 'nobody'}. {part.others}"
    yield (
        f"Study: {study.name}, method {study.method.name}, {study.horizon} rounds, updates or "
        "events at most."
    )
    yield f"What leaves this site each time it is asked: {part.released(study, index)}."
    yield (
        "What is public: that you take part, how many rows you have "
        f"({len(own)}), and when you answer."
    )
    yield f"What stays here: {options.data}, its labels, and the ledger."
    yield from _price(agreed, study, index, options)
    for line in assumptions(study):
        yield f"The guarantee rests on this: {line}"
    if (warning := unchecked(agreed, own)) is not None:
        yield f"WARNING: {warning}"
    if study.privacy.entropy != "system":
        yield (
            "WARNING: this is a rehearsal. The noise comes from the study's seed, which everybody "
            "knows: it protects nobody"
        )
    yield f"Your certificate is valid until {ends:%Y-%m-%d}."
    yield "Nothing was sent, and nothing was booked."


def _price(agreed: Agreed, study: Study, index: int, options: JoinOptions) -> Iterator[str]:
    privacy = study.privacy
    if privacy.unit == "none":
        yield "Price: epsilon is infinite. This study protects nobody"
        return
    part = agreed.network
    if (why := part.unbounded(study, index)) is not None:
        yield f"Price: epsilon is infinite for what this site has: {why}"
        return
    plan = part.plan(agreed.agreement, agreed.study, index, study)
    each = getattr(privacy, "epsilons", None)
    limit = privacy.epsilon if each is None else each[index]
    if study.form != "sound":
        yield (
            f"Price: epsilon {epsilon_text(plan.epsilon)} as far as it can be proved; the paper "
            f"claims {epsilon_text(plan.claimed)}. This literal form has no bound that a ledger "
            "could hold it to, so no limit is enforced"
        )
        return
    yield f"What is protected: {adjacency(study)}"
    regime = regimes.of(study)
    if regime.summing(study) is not None:
        yield f"Against whom: {regime.against(study)}"
    noise = plan.clients[index][1] if plan.clients else plan.noise_multiplier
    yield (
        f"Price: at most epsilon {epsilon_text(limit)} at delta {privacy.delta} "
        f"({privacy.accountant}), with a noise multiplier of {noise}; this site's "
        "own ledger refuses anything beyond it, whatever the server asks"
    )
    if options.ledger is None:
        yield (
            "The ledger is of this run alone: what other runs spend on the same rows is not added "
            "up" + (". Give --ledger FOLDER for one that is" if part.data_ledger else "")
        )
    else:
        yield f"The ledger in {options.ledger} adds this to what the same rows have spent before."
