"""`grbm doctor`: each disease is found and named, with a remedy; health is called health."""

import json
import re
from dataclasses import replace

import pytest
import torch

from grbm import GRBM, Base, TrainState, cli
from grbm.core.randomness import generator
from grbm.data import Elementwise
from grbm.data.config import DatasetConfig
from grbm.data.frame import Frame
from grbm.data.loading import Dataset
from grbm.evaluate.baselines import Comparison
from grbm.evaluate.distance import energy_distance
from grbm.fitting.density import Fitted
from grbm.fitting.recipe import ObjectiveConfig, SamplerConfig, TrainConfig
from grbm.report import doctor
from grbm.report.doctor import Finding, diagnose
from grbm.runs import CHECKPOINTS, EVALUATION, MIXING, Run, Status, checkpoint, model_digest
from grbm.runs.config import RunConfig, SamplingConfig
from grbm.samplers import Gibbs, sample
from tests.helpers import exact_chains, random_model

N, M = 3, 4


def record(update: int, **changes) -> dict:
    usual = {"clipped": 0.3, "accept_prob": None, "energy_distance": 0.01 + 0.2 / update, "grad_norm": 1.0}
    return {"update": update, **usual, **changes}


def healthy(tmp_path, model: GRBM | None = None, **changes) -> tuple[Run, Dataset]:
    """A model and exact samples of it as its data."""
    model = model or random_model(N, M, 1, dtype=torch.float32)
    rows = exact_chains(model.double(), 3000, seed=0)[0].float()
    model = model.float()
    config = RunConfig(
        DatasetConfig("array", standardise="none"),
        sampler=SamplerConfig("gibbs"),
        objective=ObjectiveConfig("pcd", n_steps=5),
        train=TrainConfig(n_updates=100),
        sampling=SamplingConfig(SamplerConfig("gibbs"), n_steps=50),
    )
    n = model.n_visible
    frame = Frame(Elementwise.of(torch.zeros(n), torch.ones(n)), Base(torch.zeros(n), torch.ones(n)))
    metrics = [record(k) for k in range(1, 101)]
    fitted = Fitted(frame, model)
    run = Run(tmp_path, config, fitted, None, Status("finished", 100), metrics, "")._replace(**changes)
    return run, Dataset(rows[:2500], rows[2500:])


def named(findings: list[Finding], about: str) -> Finding:
    return next(finding for finding in findings if finding.about == about)


def test_health_is_called_health(tmp_path):
    findings = diagnose(*healthy(tmp_path))
    assert {f.level for f in findings} == {"fine"}, findings
    assert {f.about for f in findings} >= {
        "training",
        "progress",
        "variances",
        "gradients",
        "hidden units",
        "two starts",
    }


def test_draws_beyond_the_numbers_of_the_data_are_told(tmp_path):
    """An amount whose many zeros one normal distribution goes below."""
    run, dataset = healthy(tmp_path)
    assert named(diagnose(run, dataset), "ranges").level == "fine"
    cut = dataset._replace(train=dataset.train.clamp_min(0.0))
    found = named(diagnose(run._replace(columns=("rain", "b", "c")), cut), "ranges")
    assert found.level == "note"
    share = float((dataset.train[:, 0] < 0).double().mean())
    (said,) = re.findall(r"rain in (\d+)% below its lowest number, 0", found.text)
    assert int(said) / 100 == pytest.approx(share, abs=0.07)  # four standard errors of 1,000 draws
    assert "--dataset.bounds" in found.text


def changed(run: Run, **train) -> Run:
    return run._replace(config=replace(run.config, train=replace(run.config.train, **train)))


def test_diseases_of_the_record(tmp_path):
    run, data = healthy(tmp_path)

    def found(about, **changes):
        return named(diagnose(run._replace(**changes), data), about)

    assert found("divergence", status=Status("diverged", 7)).level == "wrong"
    assert found("training", status=Status("interrupted", 7)).level == "note"
    for rate, level, word in (
        (0.001, "wrong", "Lower --sampler.step-size"),
        (0.9999, "wrong", "Raise"),
        (0.6, "fine", "60%"),
    ):
        finding = found("acceptance", metrics=[record(k, accept_prob=rate) for k in range(1, 101)])
        assert finding.level == level
        assert word in finding.text
    sampler = SamplerConfig("global-moves")
    jumping = run._replace(config=replace(run.config, sampler=sampler))
    for rate, level in ((0.004, "note"), (0.006, "fine")):
        metrics = [record(k, accept_prob=rate) for k in range(1, 101)]
        assert named(diagnose(jumping._replace(metrics=metrics), data), "acceptance").level == level
    for rate, level, word in ((0.001, "wrong", "n-replicas"), (0.02, "note", "2.0%"), (0.4, "fine", "14 replicas")):
        finding = found("swaps", metrics=[record(k, swap_rate_min=rate, replicas=14) for k in range(1, 101)])
        assert finding.level == level
        assert word in finding.text
    clipped = [record(k, clipped=1.0) for k in range(1, 101)]
    assert "clip-norm" in found("gradients", metrics=clipped).text
    spectral = named(diagnose(changed(run, spectral_norm=0.5)._replace(metrics=clipped), data), "gradients")
    assert spectral.level == "fine"
    assert "--train.spectral-norm" in spectral.text
    worse = [record(k, energy_distance=0.05 + 0.01 * abs(k - 50)) for k in range(1, 101)]
    finding = found("later is worse", metrics=worse)
    assert "around update 5" in finding.text
    assert "No checkpoint of then was kept" in finding.text
    for update, kept in ((90, False), (47, True)):  # a best checkpoint from elsewhere is no help
        model = GRBM(N, M)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01), seed=0)
        state.update = update
        checkpoint.save(tmp_path / CHECKPOINTS, state, run="x", notes={"score": 1.0 - update / 1000 - kept})
        assert ("Use --weights best" in found("later is worse", metrics=worse).text) == kept


def test_where_the_best_weights_are_kept_the_rows_they_were_chosen_by_are_the_judge(tmp_path):
    run, data = healthy(tmp_path)
    metrics = [record(k, energy_distance=0.05 + k, nats_validation=-20.0 - abs(k - 70)) for k in range(1, 101)]
    run = changed(run, keep_best=True)._replace(metrics=metrics)
    assert named(diagnose(run, data), "progress").text.startswith(
        "Best validation log-likelihood: -20 nats per row, at update 70;"
    )
    with pytest.raises(StopIteration):
        named(diagnose(run, data), "later is worse")
    assert named(diagnose(changed(run, keep_best=False), data), "later is worse").level == "wrong"


def test_diseases_of_the_variances(tmp_path):
    run, data = healthy(tmp_path)
    floor = float(run.model.var.detach().min())
    finding = named(diagnose(changed(run, min_var=floor), data), "variances")
    assert "33% of the visible units are at the floor" in finding.text
    assert finding.level == "fine"
    with torch.no_grad():
        run.model.log_var[0] = -8.0
    finding = named(diagnose(changed(run, min_var=float(run.model.var.detach().min())), data), "variances")
    assert finding.level == "wrong"
    assert "33% of the visible units have a σ² below" in finding.text
    with torch.no_grad():
        run.model.log_var[0] = 2.0
    assert named(diagnose(run, data), "variances").level == "wrong"


def test_a_floor_that_keeps_the_model_from_the_data(tmp_path):
    """Two tight modes under a floor that is wider than they are."""
    model = two_modes()
    rows = torch.randint(2, (2500, 1), generator=torch.Generator().manual_seed(0)) * torch.tensor([[12.0, 0.0]])
    rows = rows + 0.1 * torch.randn(2500, 2, generator=torch.Generator().manual_seed(1))
    run, _ = healthy(tmp_path, model)
    finding = named(diagnose(changed(run, min_var=1.0), Dataset(rows, rows[:100])), "variances")
    assert finding.level == "note"
    assert "lower --train.min-var" in finding.text


def test_dead_and_saturated_hidden_units(tmp_path):
    run, data = healthy(tmp_path)
    with torch.no_grad():
        run.model.b[0], run.model.b[1] = -60.0, 60.0
    finding = named(diagnose(run, data), "hidden units")
    assert "25% are off and 25% on" in finding.text
    assert finding.level == "note"


def two_modes() -> GRBM:
    """Modes 12 deviations apart, which Gibbs does not cross in 50 steps."""
    model = GRBM(2, 2)
    with torch.no_grad():
        model.W.copy_(torch.tensor([[12.0, 0.0], [0.0, 0.1]]))
        model.b.copy_(torch.tensor([-72.0, 0.0]))
    return model


def test_chains_that_have_not_forgotten_their_start(tmp_path):
    """Both modes have half of the mass, but noise is all at the one: chains from the data stay where they started."""
    run, data = healthy(tmp_path, two_modes())
    finding = named(diagnose(run, data), "two starts")
    assert finding.level == "wrong"
    assert "not forgotten their start" in finding.text


def test_an_energy_gap_between_data_and_chains(tmp_path):
    run, data = healthy(tmp_path)
    far = Dataset(data.train + 8, data.test + 8)
    finding = named(diagnose(run, far), "energy gap")
    assert finding.level == "wrong"
    assert "deeper than at the data" in finding.text
    few = replace(run.config.sampling, sampler=SamplerConfig("langevin", step_size=1e-4), n_steps=1)
    slow = run._replace(config=replace(run.config, sampling=few))
    sharp = random_model(N, M, 1, dtype=torch.float32)
    with torch.no_grad():
        sharp.log_var -= 5
    slow, data = healthy(tmp_path, sharp, config=slow.config)
    finding = named(diagnose(slow, data), "energy gap")
    assert finding.level == "wrong"
    assert "not come down" in finding.text


def test_a_gap_that_more_steps_cannot_close_is_not_given_more_steps(tmp_path):
    """The data are all at the top of a mode, where samples of the model rarely are; chains from both starts agree."""
    wide = random_model(30, 2, 1, dtype=torch.float32, strength=0.1)
    run, data = healthy(tmp_path, wide)
    top = data.train.mean(0) + 0.1 * (data.train - data.train.mean(0))
    findings = diagnose(run, Dataset(top, top[:100]))
    assert named(findings, "two starts").level == "fine"
    finding = named(findings, "energy gap")
    assert finding.level == "wrong"
    assert "more steps change nothing" in finding.text
    assert "--sampling.n-steps" not in finding.text


def test_what_longer_chains_said_is_repeated(tmp_path):
    run, data = healthy(tmp_path)
    for mixed, level in ((True, "fine"), (False, "note")):  # a note: the verdict is the same before and after
        found = {"mixed": mixed, "sampler": "gibbs", "verdict": "They said so.", "model": model_digest(run.model)}
        (tmp_path / MIXING).write_text(json.dumps(found))
        assert named(diagnose(run, data), "mixing of gibbs") == Finding(level, "mixing of gibbs", "They said so.")
    with torch.no_grad():
        run.model.b += 1  # trained further since
    assert not any(finding.about == "mixing of gibbs" for finding in diagnose(run, data))


def test_overfitting(tmp_path):
    run, data = healthy(tmp_path)
    finding = named(diagnose(run, data._replace(test=data.test + 3)), "overfitting")
    assert finding.level == "wrong"


def test_numbers_that_are_not_finite(tmp_path):
    run, data = healthy(tmp_path)
    explosive = SamplingConfig(SamplerConfig("langevin", step_size=50.0), n_steps=200)
    exploding = run._replace(config=replace(run.config, sampling=explosive))
    assert named(diagnose(exploding, data), "chains").level == "wrong"
    with torch.no_grad():
        run.model.b[0] = torch.nan
    assert [finding.level for finding in diagnose(run, data)] == ["wrong"]


def test_without_data_the_rest_is_still_said(tmp_path):
    findings = diagnose(healthy(tmp_path)[0], None)
    assert named(findings, "data").level == "note"
    assert named(findings, "variances").level == "fine"


def test_distances_that_scatter_around_nothing_are_no_decline(tmp_path):
    """Estimates are negative as often as not there, and twice a negative number is no bound."""
    run, data = healthy(tmp_path)
    rng = torch.Generator().manual_seed(0)
    noise = (0.02 * torch.randn(200, generator=rng)).tolist()
    metrics = [
        {"update": k + 1, "seconds": 1.0, "energy_distance": 1.0 / (k + 1) ** 2 + x} for k, x in enumerate(noise)
    ]
    about = [finding.about for finding in diagnose(run._replace(metrics=metrics), data)]
    assert "progress" in about
    for metric in metrics[150:]:
        metric["energy_distance"] += 0.5
    assert named(diagnose(run._replace(metrics=metrics), data), "later is worse").level == "wrong"


@pytest.mark.parametrize(
    ("distances", "declines"),
    [
        ([0.3, -0.3] * 90 + [0.5, -0.1] * 10, False),  # the last mean is 0.2, three standard errors from none
        ([0.01, -0.01] * 90 + [0.21, 0.19] * 10, True),
        ([-0.2] * 100 + [0.001, -0.001] * 50, False),  # below 0 is no nearer than 0
    ],
)
def test_a_decline_is_more_than_noise_and_no_distance_is_below_nothing(tmp_path, distances, declines):
    run, data = healthy(tmp_path)
    metrics = [{"update": k + 1, "seconds": 1.0, "energy_distance": x} for k, x in enumerate(distances)]
    about = [finding.about for finding in diagnose(run._replace(metrics=metrics), data)]
    assert ("later is worse" in about) == declines


def test_the_command(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    tiny = ["--train.n-updates", "30", "--model.n-hidden", "16", "--no-figures", "--log.no-tensorboard"]
    assert cli.main(["train", "digits", *tiny, "--out", str(out)]) == 0
    capsys.readouterr()
    assert cli.main(["doctor", str(out)]) == 3
    said = capsys.readouterr().out
    assert "training: Finished all 30 updates." in said
    assert "Wrong: " in said
    assert cli.main(["doctor", str(out), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == sum(finding["level"] == "wrong" for finding in found["findings"]) >= 1
    monkeypatch.setattr("grbm.report.doctor.diagnose", lambda *a, **k: [Finding("note", "x", "y")])
    assert cli.main(["doctor", str(out)]) == 0
    assert "Nothing is wrong, but read the notes." in capsys.readouterr().out
    monkeypatch.setattr("grbm.report.doctor.diagnose", lambda *a, **k: [Finding("fine", "x", "y")])
    assert cli.main(["doctor", str(out)]) == 0
    assert "Nothing is wrong." in capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100


def test_energy_distance_is_nothing_for_equal_and_known_for_shifted_distributions():
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4000, 1, generator=rng, dtype=torch.float64) for _ in range(2))
    assert abs(float(energy_distance(x, y))) < 0.01  # standard error 0.001
    shifted = float(energy_distance(x, y + 2))
    # 2 E|x − y| − E|x − x'| − E|y − y'| with |N(d, 2)| in closed form, d = 2
    import math

    far = 2 / math.sqrt(math.pi) * math.exp(-1) + 2 * math.erf(1)
    assert shifted == pytest.approx(2 * far - 4 / math.sqrt(math.pi), abs=0.1)
    model = random_model(2, 3, 0)
    drawn = sample(model, Gibbs(), n_chains=2000, n_steps=200, seed=3).v
    assert float(energy_distance(drawn, exact_chains(model, 2000, seed=4)[0])) < 0.02


def test_pixels_that_are_nearly_always_black_do_not_weigh_as_others_do(tmp_path, monkeypatch):
    """Samples that differ from pictures in such a pixel alone, by a hundredth of a level, hardly differ."""
    run, _ = healthy(tmp_path, random_model(4, M, 1, dtype=torch.float32))
    rng = generator(0)
    pictures, drawn = torch.rand(400, 4, generator=rng), torch.rand(1000, 4, generator=rng)
    pictures[:, 3] *= 1e-3
    drawn[:, 3] = 0.01
    monkeypatch.setattr(doctor, "generate", lambda run, n, **how: drawn[:n])
    found = {}
    for shape in ((1, 2, 2), None):
        judged = diagnose(run._replace(image_shape=shape), Dataset(pictures, pictures))
        found[shape] = named(judged, "samples").level
    assert found == {(1, 2, 2): "fine", None: "wrong"}


def test_the_doctor_reads_the_comparisons_that_evaluate_wrote(tmp_path):
    """Nats above and below simpler models; with a log Z that is known badly, or not converged, no verdict."""
    run, data = healthy(tmp_path)
    one = Comparison("full-covariance Gaussian", -5.0, 0.1, 2.0, 0.25, "better")
    best = Comparison("mixture of Gaussians", -4.0, 0.1, -0.5, 0.25, "level")
    written = {"model": model_digest(run.model), "baselines": [one._asdict(), best._asdict()], "log_z_error": 0.1}

    def found(**changes) -> Finding:
        (tmp_path / EVALUATION).write_text(json.dumps(written | changes))
        return named(diagnose(run, data), "likelihood")

    good = found(log_z_converged=True)
    assert good.level == "fine"
    assert "2.00 ± 0.25 nats above a full-covariance Gaussian" in good.text
    assert "0.50 ± 0.25 nats below a mixture" in good.text
    assert found(log_z_error=0.29).level == "fine"
    for doubt in ({"log_z_error": 0.31}, {"log_z_converged": False}):
        assert found(**doubt).level == "note"
        assert "log Z is known to" in found(**doubt).text


def test_hidden_units_of_hardly_any_weight_are_counted(tmp_path):
    model = random_model(N, M, 1, dtype=torch.float32)
    norms = model.W.detach().norm(dim=0)
    n = torch.ones(M)
    n[1] = 0.09 * norms.max() / norms[1]
    assert norms.min() > 0.11 * norms.max(), "so that one alone is weak"
    with torch.no_grad():
        model.W.mul_(n)
    run, data = healthy(tmp_path, model)
    assert f" 1 of {M} have weights below a tenth" in named(diagnose(run, data), "hidden units").text
