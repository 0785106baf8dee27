"""The record as a page that opens anywhere."""

from __future__ import annotations

from pathlib import Path

from sordino.core.files import replace_file
from sordino.deployment.check import signer
from sordino.deployment.document import Record
from sordino.privacy.rounding import epsilon_text
from sordino.report.canvas import clean
from sordino.report.page import template

HOME = Path(__file__).parent


def write(record: Record, path: Path) -> None:
    """Write the page."""
    replace_file(path, render(record).encode("utf-8", "replace"))


def render(record: Record) -> str:
    """The page as HTML."""
    deployment = record.registry.deployment
    basic, loss = deployment.basic, deployment.privacy_loss
    html: str = template("record.html", HOME).render(
        title=basic.name,
        record=record,
        protected=loss.privacy_unit,
        basics=[
            ("published by", ", ".join(basic.data_curators)),
            ("description", basic.description),
            ("use", basic.intended_use),
            ("region", basic.data_product_region),
            ("published", basic.publication_date),
            ("who is protected", loss.privacy_unit),
            ("guarantee", _bound(record.epsilon, record.delta, record.accountant)),
            ("model of trust", deployment.deployment_model.model_name_details),
            ("mechanism", deployment.implementation.mechanisms),
            ("record by", ", ".join(deployment.administrative.registry_authors)),
        ],
        odds=[(_percent(each.before), _percent(each.after)) for each in record.odds],
        attacks=[
            (
                clean(each.name, 80),
                each.how,
                f"{each.plain:.3g} to {epsilon_text(each.ledger)}",
                f"{each.low:.3g}",
                each.verdict,
            )
            for each in record.attacks
        ],
        actors=[(each.who, each.sees, each.trusted) for each in record.actors],
        sites=[
            (
                clean(each.name, 60),
                "no proof given" if each.proof is None else epsilon_text(each.epsilon, 6),
                "-" if each.delta is None else f"{each.delta:g}",
                str(each.entries or "-"),
                each.head[:16] or "-",
            )
            for each in record.sites
        ],
        questions=[(each.question, each.answer) for each in record.questions],
        signer=signer(record),
        origin=[
            (name, value)
            for name, value in (
                ("run", record.run),
                ("agreement", record.agreement),
                ("begun", record.begun),
                ("ended", record.ended),
                ("entries of the ledger", str(record.entries)),
                ("last digest of the ledger", record.head),
                ("made by", record.program),
            )
            if value
        ],
    )
    return html


def _bound(epsilon: float | None, delta: float | None, accountant: str) -> str:
    if epsilon is None:
        return "none"
    return f"epsilon {epsilon_text(epsilon, 6)}, delta {delta:g} ({accountant} accountant)"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"
