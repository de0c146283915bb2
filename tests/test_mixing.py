"""Diagnostics of chains whose mixing is known, and what ArviZ is given."""

import json
import math
import re

import numpy as np
import pytest
import torch

from grbm import GRBM, Annealed, Base, Gibbs, Langevin, ParallelTempering, PartialGibbs, cli
from grbm.evaluate import mixing
from grbm.report.plots import mixing as draw
from tests.helpers import WIDE, two_modes, z_bound

QUIET = ["--no-figures", "--log.no-tensorboard"]

NONE = torch.empty(0, 1)


def uncoupled(n_visible: int = 2) -> GRBM:
    model = GRBM(n_visible, 2)
    with torch.no_grad():
        model.W.zero_()
    return model


def test_an_autoregressive_chain_has_the_known_autocorrelation_and_effective_size():
    """Without coupling PartialGibbs(ρ) makes v an AR(1): ρ^k, and (1 + ρ)/(1 − ρ) steps per independent draw.

    F = ½ Σ v² has ρ^2k. 32 chains of 2,000: the autocorrelations' standard error is about 0.01, that of sizes 5 %.
    """
    rho = 0.8
    trace = mixing.record(uncoupled(), PartialGibbs(rho), NONE, n_chains=32, n_draws=2000, every=1, burn_in=100, seed=3)
    found = mixing.diagnose(trace)
    lags = torch.arange(12)
    torch.testing.assert_close(found.autocorrelation[0, :12], rho ** (2.0 * lags.double()), atol=0.04, rtol=0)
    torch.testing.assert_close(found.autocorrelation[1, :12], rho ** lags.double(), atol=0.04, rtol=0)
    expected = (1 + rho) / (1 - rho)
    assert found.steps_per_independent == pytest.approx(expected, rel=0.15)
    assert float(found.ess_bulk.mean()) == pytest.approx(64_000 / expected, rel=0.15)
    assert found.ess_free_energy == pytest.approx(64_000 * (1 - rho**2) / (1 + rho**2), rel=0.15)
    assert found.rhat.max() < 1.01
    assert found.mixed
    # steps between draws: every second state of the same process has ρ²
    thinned = mixing.record(uncoupled(), PartialGibbs(rho), NONE, n_chains=32, n_draws=1000, every=2, seed=3)
    assert mixing.diagnose(thinned).steps_per_independent == pytest.approx(2 * (1 + rho**2) / (1 - rho**2), rel=0.15)


def test_the_autocorrelation_is_the_sum_of_products():
    """Of short chains, where a sum that went round in a circle would show."""
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).cumsum(1).double()
    centred = x - x.mean()
    products = torch.tensor([float((centred[:, : 20 - k] * centred[:, k:]).sum()) for k in range(20)])
    found = mixing._autocorrelation(x)
    torch.testing.assert_close(found, (products / products[0]).double(), atol=1e-6, rtol=1e-6)


def test_stuck_chains_are_called_stuck_and_tempered_ones_mixed():
    """Modes 12 deviations apart: from the one mode in the data, and from noise."""
    model = two_modes().float()
    data = torch.full((100, 1), 6.0)
    stuck = mixing.diagnose(mixing.record(model, Gibbs(), data, n_draws=300))
    assert not stuck.mixed
    assert stuck.verdict.startswith("Not mixed: visible unit 0 has R-hat")
    assert "tempering" in stuck.verdict
    assert stuck.rhat[0] > 1.2
    base = Base(WIDE.mean.float(), WIDE.var.float())
    tempered = mixing.record(model, ParallelTempering(base, 10), data, every=5, burn_in=200)
    found = mixing.diagnose(tempered)
    assert found.mixed, found.verdict
    assert found.swap_rate is not None
    assert found.swap_rate.shape == (9,)
    assert (found.swap_rate > 0.3).all()
    share = float((tempered.v > 0).double().mean())
    assert share == pytest.approx(0.8, abs=z_bound(1) * 0.4 / float(found.ess_bulk.min()) ** 0.5)
    few = mixing.diagnose(mixing.record(model, ParallelTempering(base, 10), data, n_draws=20, every=5))
    assert not few.mixed
    assert "R-hat" in few.verdict


def test_what_is_not_a_number_speaks_against_the_chains():
    """A NaN among many good numbers is not lost, wherever it stands."""
    good = mixing.diagnose(mixing.record(uncoupled(), Gibbs(), NONE, n_draws=300))
    assert good.problem is None
    nan = torch.tensor([torch.nan, *good.rhat[1:].tolist()])
    for changed in ({"rhat": nan}, {"rhat_free_energy": math.nan}):
        assert good._replace(**changed).problem == "not one population"
        assert good._replace(**changed).worst_rhat == math.inf
    for changed in ({"ess_bulk": nan}, {"ess_tail": nan}, {"ess_free_energy": math.nan}):
        assert good._replace(**changed).problem == "few draws"
    assert "Not mixed" in good._replace(rhat_free_energy=1.06).verdict
    assert "biased" in good._replace(exact=False).verdict


def test_chains_from_data_and_from_noise_that_differ_are_told_apart():
    trace = mixing.record(two_modes().float(), Gibbs(), torch.full((10, 1), 6.0), n_draws=50, burn_in=0)
    assert trace.n_from_data == 4
    assert (trace.v[:4] > 0).all()
    shifted = trace._replace(free_energy=trace.free_energy + 100 * (torch.arange(8)[:, None] < 4))
    assert re.search("Chains from data and from noise are (99|100)", mixing.diagnose(shifted).verdict)


def test_inference_data_holds_everything_and_survives_a_file(tmp_path):
    import arviz

    model = uncoupled(3)
    trace = mixing.record(model, Langevin(0.5, adjust_from=0), NONE, n_chains=4, n_draws=30, every=3, burn_in=5)
    data = mixing.to_inference_data(trace)
    assert data.posterior.v.dims == ("chain", "draw", "visible")
    assert data.posterior.v.shape == (4, 30, 3)
    np.testing.assert_array_equal(data.sample_stats.lp, -data.posterior.free_energy)
    with torch.no_grad():
        np.testing.assert_allclose(data.posterior.free_energy, model.free_energy(trace.v).numpy(), rtol=1e-5)
    assert trace.accept_prob is not None
    assert 0.5 < float(data.sample_stats.acceptance_rate.mean()) < 1
    assert mixing.diagnose(trace).accept_rate == pytest.approx(float(trace.accept_prob.mean()))
    tempered = mixing.to_inference_data(mixing.record(model, ParallelTempering(n_replicas=3), NONE, n_draws=10))
    assert tempered.sample_stats.swap_rate.shape == (8, 10, 2)
    assert "acceptance_rate" not in tempered.sample_stats
    data.to_netcdf(str(tmp_path / "x.nc"))
    again = arviz.from_netcdf(str(tmp_path / "x.nc"))
    np.testing.assert_array_equal(again.posterior.v, data.posterior.v)
    assert again.posterior.attrs["steps_per_draw"] == 3


def test_draws_are_those_of_the_sampler_and_follow_from_the_seed():
    model, start = uncoupled(), torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    traces = [mixing.record(model, Gibbs(), start, n_draws=5, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(traces[0].v, traces[1].v)
    assert not torch.equal(traces[0].v, traces[2].v)
    figure = draw(traces[0], mixing.diagnose(traces[0]))
    assert len(figure.axes) == 3


def test_step_sizes_do_not_fall_along_the_recording():
    """Langevin's cosine is that of a walk of ``every`` steps: late draws are worth as much as early ones."""
    trace = mixing.record(uncoupled(), Langevin(0.5, adjust_from=0), NONE, n_chains=16, n_draws=800, burn_in=100)
    parts = [
        trace._replace(v=v, free_energy=f, accept_prob=None)
        for v, f in zip(torch.chunk(trace.v, 2, 1), torch.chunk(trace.free_energy, 2, 1), strict=True)
    ]
    early, late = (mixing.diagnose(part).steps_per_independent for part in parts)
    assert 0.7 < late / early < 1.4
    assert late < 15


def test_a_biased_sampler_is_named_even_where_it_mixes():
    found = mixing.diagnose(mixing.record(uncoupled(), Langevin(0.9), NONE, every=1))
    assert found.mixed
    assert "biased by its step size" in found.verdict
    assert "biased" not in mixing.diagnose(mixing.record(uncoupled(), Gibbs(), NONE)).verdict


def test_what_is_no_chain_is_refused():
    with pytest.raises(ValueError, match="annealed"):
        mixing.record(uncoupled(), Annealed(), NONE)
    with pytest.raises(ValueError, match="n_chains must be at least 4, got 2"):
        mixing.record(uncoupled(), Gibbs(), NONE, n_chains=2)
    with pytest.raises(ValueError, match="diverged"):
        mixing.record(uncoupled(), Langevin(5.0), NONE, every=1)


def test_the_command_writes_what_it_says(tmp_path, capsys, trained_runs, figures_drawn):
    run = str(trained_runs.copy(tmp_path / "run", "digits", "--train.n-updates", "3", *QUIET))
    arguments = ["mixing", run, "--draws", "20", "--burn-in", "5", "--sampler", "parallel-tempering", "--netcdf"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "swap rate of neighbours" in printed
    scores = json.loads((tmp_path / "run" / "mixing.json").read_text())
    assert scores["sampler"] == "parallel-tempering"
    assert len(scores["swap_rate"]) >= 1
    assert all(x is None or not isinstance(x, float) or math.isfinite(x) for x in scores.values())
    assert scores["verdict"] in " ".join(printed.split())
    assert f"({len(scores['swap_rate']) + 1} replicas)" in printed
    assert (tmp_path / "run" / "figures" / "mixing.png").is_file()
    energies, autocorrelation, rhat, swaps = figures_drawn[0].axes
    assert [line.get_label() for line in energies.lines if line.get_label()[0] != "_"] == ["from data", "from noise"]
    assert all(len(line.get_ydata()) == 20 for line in energies.lines)
    assert [line.get_ydata()[0] for line in autocorrelation.lines[1:]] == pytest.approx([1, 1])
    assert sum(bar.get_height() for bar in rhat.patches) == 64
    assert [bar.get_height() for bar in swaps.patches] == pytest.approx(scores["swap_rate"], abs=1e-4)
    assert (tmp_path / "run" / "mixing.nc").is_file()
    for wrong, sentence in (
        (["--chains", "1"], "--chains must be at least 4"),
        (["--sampler", "annealed"], "no chain"),
        (["--sampler", "trajectory-tempering"], "--checkpoint.trajectory 0.4"),
    ):
        assert cli.main(["mixing", run, *wrong]) == 2
        assert sentence in capsys.readouterr().err
