"""The auditor's record: its facts against folder and proofs, and what is changed in it is seen."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import command
import sordino as so
from federations import Federation
from sordino.base.errors import LedgerError, StudyError
from sordino.deployment import document
from sordino.deployment.document import QUESTIONS, blank_answers
from sordino.network import certificates, kit, proof
from sordino.network.site import JoinOptions, opened

from .conftest import Makes

ANSWERS = """curators = ["North Hospital"]
authors = ["A. Officer"]
name = "Length of stay"
published = "2026-11-24"
sector = "Healthcare"
outside = "Nobody looked at the rows."
"""
# the fields of the registry's schema (opendp/deployments-registry-data)
SCHEMA: dict[str, set[str]] = {
    "basic": {
        "name",
        "data_curators",
        "description",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "publication_date",
        "data_product_sector",
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        "privacy_unit",
        "privacy_unit_details",
        "privacy_parameters",
        "privacy_parameters_details",
    },
    "deployment_model": {
        "model_name",
        "model_name_details",
        "actors",
        "release_type",
        "release_type_details",
        "data_source_type",
        "data_source_type_details",
        "access_type",
        "access_type_details",
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}
Played = tuple[Path, list[Path], Path]


@pytest.fixture
def played(federate: Makes, tmp_path: Path) -> Played:
    """The server's run folder, those of its sites with proofs, and the authority's certificate."""
    return _proved(federate("synchronous"))


def _proved(found: Federation) -> Played:
    found.start()
    found.wait()
    for folder, data in found.laid.sites:
        agreed, index, *_ = opened(JoinOptions(kit=folder, data=data))
        proof.write(folder, found.folder(folder.name), agreed, index, found.done[folder.name])
    server = found.laid.server
    sites = [found.folder(each.name) for each, _ in found.laid.sites]
    return server / "run", sites, server.parent / "authority" / "authority.pem"


def test_a_federations_record_states_what_sites_have_signed(played: Played, tmp_path: Path) -> None:
    server, sites, authority = played
    (tmp_path / "answers.toml").write_text(ANSWERS)
    for each in sites:
        handed = ["network", "proof", str(each), "--authority", str(authority)]
        assert command.sordino(tmp_path, *handed, "--keep", str(server)).returncode == 0
    made = so.record(server, answers=tmp_path / "answers.toml")
    stated = [
        json.loads(json.loads((each / proof.NAME).read_text())["statement"]) for each in sites
    ]
    assert [each.epsilon for each in made.sites] == [each["epsilon"] for each in stated]
    assert made.epsilon is not None
    spent = max(each["epsilon"] for each in stated)
    assert spent <= made.epsilon <= max(spent, so.Run.open(server).epsilon) * 1.00001
    assert document.check(document.read(server / "record.yaml"), server, authority) == []
    shown = command.sordino(
        tmp_path, "ledger", "verify", str(server / "record.yaml"), "--authority", str(authority)
    )
    assert f"Signed by server; {len(sites)} proofs of sites hold" in shown.stdout
    registry = yaml.safe_load((server / "record.yaml").read_text())["registry"]
    assert set(registry) == {"url_slug", "status", "tier", "deployment"}
    assert set(registry["deployment"]) == set(SCHEMA)
    for part, fields in registry["deployment"].items():
        assert set(fields) <= SCHEMA[part]
    page = (server / "record.html").read_text()
    assert "Length of stay" in page
    assert "anonym" not in page.lower()


def test_a_record_has_the_intervals_of_an_audit_but_not_of_ones_own_examples(
    played: Played, tmp_path: Path
) -> None:
    server, sites, authority = played
    row = {"name": "gaussian", "unit": "an example", "how": "threshold", "low": 0.9, "plain": 0.7}
    printed = {
        "format": 1,
        "attack": "mechanism",
        "confidence": 0.95,
        "intervals": [{**row, "ledger": 1.0, "delta": 1e-5}],
        "verdicts": ["holds"],
        "own_examples": False,
    }
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(printed))
    made = so.record(server, proofs_of=sites, audit=path)
    assert (made.attacks[0].plain, made.attacks[0].ledger) == (0.7, 1.0)
    assert made.points[-1].state == "assumed"
    assert document.check(document.read(server / "record.yaml"), server, authority) == []
    assert "0.7 to 1" in (server / "record.html").read_text()
    path.write_text(json.dumps({**printed, "verdicts": ["BROKEN"]}))
    assert so.record(server, proofs_of=sites, audit=path).points[-1].state == "open"
    path.write_text(json.dumps({**printed, "attack": "canaries", "own_examples": True}))
    with pytest.raises(StudyError, match="in no ledger"):
        so.record(server, proofs_of=sites, audit=path)


def _recorded(played: Played) -> Path:
    server, sites, _ = played
    so.record(server, proofs_of=sites)
    return server


def _set(place: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        *path, last = place.split(".")
        at: Any = record
        for key in path:
            at = at[int(key) if key.isdigit() else key]
        at[int(last) if last.isdigit() else last] = value

    return change


def _middle(text: str) -> str:
    half = len(text) // 2  # of a certificate: within its key
    return text[:half] + ("B" if text[half] == "A" else "A") + text[half + 1 :]


CHANGES = {
    "less is guaranteed": (_set("epsilon", 0.1), "registry's part states another"),
    "both figures": (
        lambda r: (
            _set("epsilon", 0.1)(r),
            _set("registry.deployment.privacy_loss.privacy_parameters.epsilon", 0.1)(r),
        ),
        "has spent epsilon",
    ),
    "a site's figure": (_set("sites.0.epsilon", 0.01), "signed statement says something else"),
    "a site's name": (_set("sites.0.name", "other"), "its sites are not those"),
    "another run": (_set("run", "0" * 16), "signed statement says something else"),
    "a site twice": (
        lambda r: r["sites"].append(dict(r["sites"][0], proof=dict(r["sites"][0]["proof"]))),
        "stands in it twice",
    ),
    "an answer": (_set("questions.0.answer", "x"), "its signature does not hold"),
    "the sentence": (_set("guarantee", "(epsilon = 0.1, delta"), "different guarantees"),
    "a point": (_set("points.0.state", "holds"), "its signature does not hold"),
    "a site left out": (lambda r: r["sites"].pop(), "its sites are not those"),
    "words before a certificate": (
        lambda r: r["signature"].update(certificate="Seen.\n" + r["signature"]["certificate"]),
        "not spelled as it was written",
    ),
    "another key": (
        lambda r: r["signature"].update(certificate=_middle(r["signature"]["certificate"])),
        "its signature does not hold",
    ),
    "a proof left out": (lambda r: r["sites"][0].pop("proof"), "its signature does not hold"),
}


def test_what_is_changed_is_seen(played: Played) -> None:
    path = _recorded(played) / "record.yaml"
    whole = path.read_text()
    for change, said in CHANGES.values():
        table = yaml.safe_load(whole)
        change(table)
        path.write_text(yaml.safe_dump(table))
        with pytest.raises(LedgerError, match=said):
            document.check(document.read(path), path, played[2])


def test_what_a_site_has_spent_more_is_what_the_record_guarantees(played: Played) -> None:
    """A site that was killed books more than the server knows of."""
    server, sites, authority = played
    path = sites[0] / proof.NAME
    whole = json.loads(path.read_text())
    pair = certificates.read_pair(sites[0].parent, "site")

    def sign(epsilon: float | None) -> document.Record:
        told = json.dumps({**json.loads(whole["statement"]), "epsilon": epsilon})
        signature = base64.b64encode(certificates.signed(pair, told.encode())).decode()
        path.write_text(json.dumps({**whole, "statement": told, "signature": signature}))
        (sites[0] / "ledger.sqlite").unlink(missing_ok=True)
        return so.record(server, proofs_of=sites)

    made = sign(250.0)
    assert (made.epsilon, made.odds[-1].after) == (250.0, 1.0)
    assert "(epsilon = 250, delta" in made.guarantee
    assert made.guarantee == made.registry.deployment.privacy_loss.privacy_parameters_details
    none = sign(None)
    assert (none.private, none.odds) == (False, ())
    assert none.guarantee == "No privacy guarantee. A site's ledger has no bound."
    with pytest.raises(StudyError, match="two proofs of one site"):
        so.record(server, proofs_of=[*sites, sites[0]])
    less = so.record(server, proofs_of=sites[1:])
    assert document.check(less, server, authority)[0].startswith("1 of 3 sites have given no proof")
    fewer = msgspec.structs.replace(less, sites=less.sites[1:])
    with pytest.raises(LedgerError, match="its sites are not those of the agreement"):
        document.check(document.signed(fewer, server.parent, "server"), server, authority)


def test_parties_with_features_are_told_that_embeddings_tell(federate: Makes) -> None:
    label = ["privacy.unit=label", "privacy.epsilon=3.0", "privacy.delta=1e-3"]
    folder, sites, authority = _proved(federate("events", label))
    made = so.record(folder, proofs_of=sites)
    assert made.epsilon is not None
    assert [each.epsilon is None for each in made.sites] == [True, True, False]
    assert not document.check(document.signed(made, folder.parent, "server"), folder, authority)
    server = next(each for each in made.actors if each.who == "The server")
    assert "embeddings of its features, without noise" in server.sees
    assert "labels" in server.trusted
    assert not any("clipped" in each.why for each in made.points)


def test_layout_is_not_signed_and_a_site_cannot_sign_for_all(played: Played) -> None:
    path, sites, authority = _recorded(played) / "record.yaml", played[1], played[2]
    table = yaml.safe_load(path.read_text())
    path.write_text(json.dumps(table))  # JSON is YAML
    assert document.check(document.read(path), path, authority) == []
    forged = document.signed(document.read(path), sites[0].parent, "site")
    with pytest.raises(LedgerError, match="a record over all sites is the server's"):
        document.check(forged, path, authority)
    with pytest.raises(LedgerError, match="give --authority"):
        document.check(document.read(path), path, None)
    table.pop("signature")
    path.write_text(yaml.safe_dump(table))
    assert "Nobody has signed" in document.check(document.read(path), path, authority)[0]
    own = so.record(sites[0])
    assert document.signer(own) == sites[0].parent.name
    assert [each.name for each in own.sites if each.proof] == [sites[0].parent.name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no record of format 1"),
        (b"format: 2\n", "no record of format 1"),
        (b"format: [1", "cannot be read"),
        (b"format: 1\nrun: x\n", "missing required field"),
        (b"\x00\x01", "cannot be read"),
        (b"format: !!int ''\n", "cannot be read"),
        (b"!!python/object/apply:os.system ['true']", "cannot be read"),
        (b"a: &a [1]\nb: [*a, *a]\nformat: 1\n", "no aliases"),
    ],
)
def test_what_is_no_record_is_one_message(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "record.yaml").write_bytes(content)
    shown = command.sordino(tmp_path, "ledger", "verify", "record.yaml")
    assert shown.returncode == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_simulation_protects_nobody_and_an_unfinished_run_has_no_record(tmp_path: Path) -> None:
    study = so.Study(
        data={"name": "digits", "clients": 3},
        model="logistic",
        method=so.DpSgd(learning_rate=0.5, tau=1),
        privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
        budget=so.Budget(rounds=2),
    )
    run = so.run(study, out=tmp_path / "run", progress=False)
    made = so.record(run.folder)
    states = {each.point: each.state for each in made.points}
    assert states["Random numbers"] == states["Several releases of the same data"] == "open"
    assert made.signature is None
    (odds,) = [each.after for each in made.odds if each.before == 0.5]
    exact = math.exp(made.epsilon or 0) / (1 + math.exp(made.epsilon or 0))
    assert exact <= odds <= exact + 1e-4
    shown = command.sordino(tmp_path, "ledger", "verify", "run/record.yaml")
    assert "Nobody has signed this record" in shown.stdout
    with pytest.raises(StudyError, match="proofs belong to a federation"):
        so.record(run.folder, proofs_of=[tmp_path])
    about = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**about, "status": "running"}))
    with pytest.raises(LedgerError, match="has not ended"):
        so.record(run.folder)


def test_nothing_private_means_no_guarantee(tmp_path: Path) -> None:
    study = so.Study(
        data={"name": "digits", "clients": 3},
        model="logistic",
        method=so.FedAvg(learning_rate=0.5, tau=1),
        privacy=so.Privacy(unit="none", sampling_rate=0.1),
        budget=so.Budget(rounds=1),
    )
    made = so.record(so.run(study, out=tmp_path / "run", progress=False).folder)
    assert (made.private, made.epsilon, made.odds) == (False, None, ())
    assert made.unprotected[0] == "Everything: nothing has noise."
    assert made.registry.deployment.privacy_loss.privacy_parameters == document.Parameters()


def test_questions_are_a_file_to_fill_in(tmp_path: Path) -> None:
    shown = command.sordino(tmp_path, "record", "--questions")
    assert shown.stdout == blank_answers()
    assert all(f'\n{key} = ""' in shown.stdout for key in QUESTIONS)
    (tmp_path / "a.toml").write_text(shown.stdout.replace('sector = ""', 'sector = "Bank"'))
    refused = command.sordino(tmp_path, "record", ".", "--answers", "a.toml")
    assert refused.returncode == 2
    assert "no run folder" in refused.stderr or "sector must be one of" in refused.stderr


WRITTEN: dict[str, tuple[Callable[[str], str], str]] = {
    "a figure above it": (
        lambda text: text.replace("\nepsilon:", "\nepsilon: 0.01\nepsilon:", 1),
        "stands twice",
    ),
    "a merged one": (lambda text: "<<: {epsilon: 0.01}\n" + text, "or is merged"),
    "no number": (lambda text: text.replace("\nepsilon:", "\nepsilon: .nan #", 1), "no guarantee"),
    "no certificate": (
        lambda text: (
            text.partition("\nsignature:")[0] + "\nsignature: {certificate: '', signature: ''}\n"
        ),
        "cannot be read",
    ),
}


def test_a_record_says_one_thing_to_people_and_programs(played: Played) -> None:
    """Others read the first of two keys, and what is signed would be the last."""
    path = _recorded(played) / "record.yaml"
    whole = path.read_text()
    for change, said in WRITTEN.values():
        path.write_text(change(whole))
        with pytest.raises((LedgerError, StudyError), match=said):
            document.check(document.read(path), path, played[2])


def test_nobody_but_the_server_signs_a_record_over_all_sites(played: Played) -> None:
    """A broker's certificate is of the server's kind, and so is that of another study's server."""
    path = _recorded(played) / "record.yaml"
    authority = played[2].parent
    by = certificates.read_pair(authority, "authority")
    agreement, now = kit.read_agreement(authority / kit.AGREEMENT), dt.datetime.now(dt.UTC)

    def signs(name: str, kind: certificates.Kind, *hosts: str) -> None:
        made = certificates.certify(by, name, kind, now, hosts=hosts)
        for place, content in zip((f"{name}.pem", f"{name}.key"), made.pem(), strict=True):
            (path.parent / place).write_bytes(content)
        signed = document.signed(document.read(path), path.parent, name)
        document.check(signed, path, played[2])

    with pytest.raises(LedgerError, match="broker has signed it"):
        signs("broker", "server", "x")
    with pytest.raises(LedgerError, match="the server of another study"):
        signs("server", "server", "other.example")
    with pytest.raises(LedgerError, match="the server of another study"):
        signs("server", "site")
    signs("server", "server", agreement.host, "moved.example")
    read = document.read(path)
    bare = tuple(document.Site(name=each.name) for each in read.sites)
    other = msgspec.structs.replace(read, agreement="", sites=bare)
    signed = document.signed(other, path.parent, "server")
    assert "about another agreement" in document.check(signed, path, played[2])[0]
    table = yaml.safe_load(path.read_text())
    for sites in [{"name": "server"}], []:  # who is no site does not speak for itself alone
        path.write_text(yaml.safe_dump(table | {"sites": sites}))
        with pytest.raises(LedgerError, match="its sites are not those"):
            signs("server", "server", agreement.host)
    two = f"(epsilon = 0.1, delta = 1e-9) {table['guarantee']}"
    table["guarantee"] = two
    table["registry"]["deployment"]["privacy_loss"]["privacy_parameters_details"] = two
    path.write_text(yaml.safe_dump(table))
    with pytest.raises(LedgerError, match="states another epsilon than the record"):
        signs("server", "server", agreement.host)
