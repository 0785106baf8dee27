"""``sordino audit`` on the embedded digits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import sordino
from sordino.base.errors import StudyError
from sordino.cli import app
from sordino.core import regimes as build
from sordino.core import study as studies
from sordino.core.run import session

STUDY = """\
name = "audited"

[data]
name = "digits"
clients = 4

[model]
name = "logistic"

[method]
name = "dp-sgd"
learning_rate = 0.5
tau = 1

[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
clip = 1.0
noise_multiplier = 0.8
sampling_rate = 0.1
accountant = "rdp"

[budget]
rounds = 3
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


def audit(path: Path, *arguments: str) -> int:
    return int(
        app(["audit", str(path), "--attack", "inversion", *arguments], standalone_mode=False) or 0
    )


def told(capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    output = capfd.readouterr()
    return json.loads(output.out.splitlines()[-1]), output.err


def test_a_study_is_attacked_shown_and_priced(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--images",
        "3",
        "--noise",
        "study,mapa@1,0,0.1",
        "--model",
        "logistic",
        "--model",
        "svm",
        "--json",
    ]
    assert audit(study, *arguments) == 0
    found, messages = told(capfd)
    assert found["weights"] == "initial"
    assert [(scene["model"], scene["alone"]) for scene in found["scenes"]] == [
        (m, a) for m in ("logistic", "svm") for a in (True, False)
    ]
    for scene in found["scenes"]:
        levels = scene["levels"]
        assert [(one["noise_multiplier"], one["mapa_epsilon"], one["study"]) for one in levels] == [
            (0.0, None, False),
            (0.1, None, False),
            (0.8, None, True),
            (None, 1.0, False),
        ]
        assert [one["epsilon"] for one in levels if not one["noise_multiplier"]] == ["inf", "inf"]
        assert (
            levels[1]["epsilon"]
            > levels[1]["epsilon_once"]
            > levels[2]["epsilon"]
            > levels[2]["epsilon_once"]
            > 0
        )
        assert (
            len(scene["labels"])
            == len(scene["without_gradient"])
            == len(levels[0]["correlations"])
            == 3
        )
    assert found["scenes"][0]["levels"][0]["correlation"] > 0.999
    assert found["scenes"][0]["batch"] == 1
    assert found["scenes"][1]["batch"] > 20  # about 0.1 x 1437 / 4
    picture = Path("runs/audit-study/inversion.svg").read_text(encoding="utf-8")
    assert picture.count("<image") == 4 * (2 + 4) * 3
    for said in (
        "logistic, batch of 1",
        "σ = 0.8 (the study's)",
        "no noise",
        "MAPA's noise, ε₀ = 1",
        "ε = ∞",
        "original",
    ):
        assert said in picture
    assert "raw training images" in messages
    assert "An attack that fails proves nothing" in messages
    assert audit(study, *arguments, "--out", "again.svg") == 0
    assert Path("again.svg").read_text(encoding="utf-8") == picture


def test_the_studys_own_price_is_its_plans(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert audit(study, "--images", "1", "--noise", "study", "--out", "folder", "--json") == 0
    found, _ = told(capfd)
    priced, _ = build.plan(studies.read(study))
    assert found["scenes"][0]["levels"][0]["epsilon"] == pytest.approx(priced.epsilon)
    assert found["picture"] == "folder/inversion.svg"
    assert Path("folder/inversion.svg").exists()


def test_a_run_is_attacked_at_its_trained_weights(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session.begin(studies.read(study), Path("run"), lambda row: None, lambda about: None)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for path in (study, Path("run")):
        assert audit(path, "--images", "2", "--noise", "0.03", "--json") == 0
    initial, trained = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert (initial["weights"], trained["weights"]) == ("initial", "trained")
    assert (
        initial["scenes"][0]["levels"][0]["correlations"]
        != trained["scenes"][0]["levels"][0]["correlations"]
    )
    assert trained["scenes"][0]["levels"][0]["correlation"] > 0.9
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    with pytest.raises(StudyError, match="are not those of the study's model"):
        audit(Path("run"), "--set", "model.name=mlp")
    with pytest.raises(StudyError, match="--model does not go with a run folder"):
        audit(Path("run"), "--model", "svm")
    Path("run/model.safetensors").write_bytes(b"no")
    with pytest.raises(StudyError, match=r"model.safetensors: cannot be read"):
        audit(Path("run"))
    Path("run/model.safetensors").unlink()
    with pytest.raises(
        StudyError,
        match=r"there is no trained model. Finish the run with `sordino run --resume run`",
    ):
        audit(Path("run"))


def test_without_privacy_the_own_level_is_no_noise(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace('"dp-sgd"', '"fedavg"').replace('unit = "sample"', 'unit = "none"')
    study.write_text(
        "\n".join(
            line for line in text.splitlines() if not line.startswith(("epsilon", "delta", "noise"))
        )
    )
    assert audit(study, "--images", "1", "--noise", "study,1", "--json") == 0
    levels = told(capfd)[0]["scenes"][0]["levels"]
    assert [(one["study"], one["epsilon"] == "inf") for one in levels] == [
        (True, True),
        (False, False),
    ]


def test_a_papers_literal_noise_is_attacked_at_its_true_price(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    literal = 'privacy.mechanism={ kind = "haar", form = "paper" }'
    assert (
        audit(
            study,
            "--images",
            "2",
            "--noise",
            "study",
            "--set",
            literal,
            "--set",
            "privacy.noise_multiplier=2.0",
            "--json",
        )
        == 0
    )
    own = told(capfd)[0]["scenes"][0]["levels"][0]
    assert own["epsilon"] > 1000
    assert own["correlation"] > 0.3  # where a Gaussian of this sigma leaves 0.06


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.toml", "--attack", "inversion"], "gone.toml: there is no such study file"),
        (["study.toml"], "--attack is missing: it says which one. Known: inversion"),
        (
            ["study.toml", "--attack", "invresion"],
            "--attack 'invresion' is not known; did you mean 'inversion'?",
        ),
        (["study.toml", "--attack", "inversion", "--noise", "0,loud"], "'loud' is no noise level"),
        (["study.toml", "--attack", "inversion", "--noise", "-1"], "'-1' is no noise level"),
        (["study.toml", "--attack", "inversion", "--noise", "nan"], "'nan' is no noise level"),
        (
            ["study.toml", "--attack", "inversion", "--noise", "mapa@0"],
            "'mapa@0' is no noise level",
        ),
        (["study.toml", "--attack", "inversion", "--noise", ""], "'' is no noise level"),
        (
            ["study.toml", "--attack", "inversion", "--images", "0"],
            "--images must be from 1 to 20; got 0",
        ),
        (["study.toml", "--attack", "inversion", "--out", "x.png"], "the picture is an SVG file"),
        (
            ["study.toml", "--attack", "inversion", "--model", "logistik"],
            "did you mean 'logistic'?",
        ),
        ([".", "--attack", "inversion"], "this is no run folder: it has no run.json"),
        (
            ["study.toml", "--attack", "inversion", "--model", "conv:net"],
            "linear first layer with biases",
        ),
        (["client.toml", "--attack", "inversion"], "clients send whole updates"),
        (["table.toml", "--attack", "inversion"], "needs images"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    arguments: list[str], message: str, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    Path("conv.py").write_text(
        "from torch import nn\n"
        "def net(shape, classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, classes))\n"
    )
    Path("client.toml").write_text(
        STUDY.replace('"dp-sgd"', '"dp-fedavg"').replace('"sample"', '"client"')
    )
    rows = "\n".join(f"{i},{i % 7},{i % 2}" for i in range(200))
    Path("rows.csv").write_text(f"a,b,label\n{rows}\n")
    Path("table.toml").write_text(STUDY.replace('name = "digits"', 'file = "rows.csv"'))
    before = sorted(Path().rglob("*.svg"))
    with pytest.raises(StudyError) as refused:
        app(["audit", *arguments], standalone_mode=False)
    assert message in str(refused.value)
    assert sorted(Path().rglob("*.svg")) == before


def test_mistakes_end_with_status_two_and_help_needs_no_torch(tmp_path: Path) -> None:
    process = sordino(tmp_path, "audit", "gone.toml", "--attack", "inversion")
    assert process.returncode == 2
    assert process.stderr.startswith("sordino: gone.toml: there is no such study file")
    script = """import sys
import sordino.cli as c
for arguments, heavy in ((["--help"], "numpy"), (["audit", "--help"], "torch")):
    sys.argv = ["sordino", *arguments]
    try:
        c.main()
    except SystemExit:
        assert not {heavy, "torch", "matplotlib"} & set(sys.modules), sys.argv
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
