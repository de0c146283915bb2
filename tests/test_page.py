"""report.html and compare.html: what they say, and that a real browser shows it and plays it."""

import functools
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import cli, runs
from grbm.fitting.recipe import SamplerConfig
from grbm.report import plots
from grbm.report.page import compare, report

QUIET = ["--train.n-updates", "40", "--log.no-tensorboard", "--no-figures"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, trained_runs):
    """A run of images with scores beside it, another, one of the plane, one of an array."""
    folder = tmp_path_factory.mktemp("runs")
    np.save(folder / "array.npy", np.random.default_rng(0).normal(size=(200, 5)))
    for name, preset, options in (
        ("digits", "digits", ["--train.learning-rate", "0.04"]),
        ("other", "digits", ["--model.n-hidden", "32"]),
        ("isotropic", "isotropic", []),
        ("array", "array", ["--data", str(folder / "array.npy")]),
    ):
        trained_runs.copy(folder / name, preset, *options, *QUIET, LOOKS=5)  # 40 would take longer than learning
    scores = {"log_likelihood_test": -12.3456, "log_likelihood_test_error": 0.25, "log_z": 1.5, "log_z_error": 0.0}
    model = {"model": runs.model_digest(runs.read(folder / "digits").model)}
    (folder / "digits" / runs.EVALUATION).write_text(json.dumps(scores | model))
    rows = {
        name: {"Fréchet": x, "Fréchet ±": 0.5, "precision": 0.9} for name, x in (("this run", 7.0), ("one <b>", 9.0))
    }
    table = {"rows": rows, "protocol": ["100 images."], "settings": model | {"n": 100}, "own_protocol": []}
    (folder / "digits" / runs.FID).write_text(json.dumps(table))
    return folder


@pytest.fixture(scope="module")
def page_of(trained):
    """The page of a run by its name, drawn once."""
    return functools.cache(lambda name: report(runs.read(trained / name)))


def text_of(path):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8").partition("<main>")[2]))


@pytest.mark.parametrize("n_columns", [1, 2])
@pytest.mark.parametrize("beside", [False, True])
def test_frames_of_a_film_are_the_figures_that_they_stand_for(n_columns, beside):
    rows = torch.randn(4, 50, n_columns, generator=torch.Generator().manual_seed(0))
    states, data, limits = rows[:3], rows[3] if beside else None, plots.limits_of(rows[:, :, [0, -1]].flatten(0, 1))
    frames = list(plots.clouds(states, data, limits))
    for state, frame in zip(states, frames, strict=True):
        content = io.BytesIO()
        plots.cloud(state, data, limits).savefig(content, format="png", dpi=100, transparent=True)
        assert np.array_equal(np.array(Image.open(content)), frame)
    assert not np.array_equal(frames[0], frames[1])


def test_a_report_says_what_was_done_and_how_good_it_is(page_of):
    text = text_of(page_of("digits"))
    assert "1,618 rows of 64 visible units (1 x 8 x 8); 179 held out" in text
    assert "40 of 40 updates of 256 rows; pcd, 10 steps of gibbs; sgd, rate 0.04, spectral norm 0.3" in text
    assert "grbm train digits --train.learning-rate 0.04" in text
    assert "PyTorch" in text
    assert "log-likelihood, held out, nats -12.35 ± 0.25" in text
    assert "7.00 ± 0.50" in text
    assert "one &lt;b&gt;" in text
    assert "100 images." in text
    assert "grbm mixing" in text  # what is missing is named
    assert "--fid" not in text[text.index("Next") : text.index("Samples")]  # which was measured already
    assert "Finished all 40 updates" in text
    assert "train.learning_rate 0.04" in text


def test_scores_that_take_seconds_are_computed_and_others_are_not(trained, page_of, tmp_path):
    """Of a table and of the plane; an image's log Z would be annealed, and what was measured stays."""
    for name in ("array", "isotropic"):
        page_of(name)
        scores = json.loads((trained / name / runs.EVALUATION).read_text())
        assert scores["log_likelihood_test"] < 0
    assert len(scores["baselines"]) >= 3
    assert "mixture of Gaussians" in text_of(page_of("array"))
    report(runs.read(trained / "other"))
    assert not (trained / "other" / runs.EVALUATION).exists()
    assert "-12.35" in text_of(page_of("digits"))


@pytest.mark.parametrize(("name", "n_curves"), [("array", 6), ("isotropic", 6), ("digits", 6)])
def test_panels_come_in_pairs(name, n_curves, page_of):
    page = page_of(name).read_text(encoding="utf-8")
    learned = page[page.index("What was learned") : page.index("<h2>Scores")]
    assert len(re.findall('class="chart"', learned)) == n_curves


def test_the_verdict_comes_first(page_of):
    """Before anything else: whether something is wrong, and what; of a good run, how good it is."""
    good, bad = text_of(page_of("array")), text_of(page_of("digits"))
    for text in (good, bad):
        assert text.index("Verdict") < text.index("Samples")
    verdict = good[good.index("Verdict") : good.index("Samples")]
    assert "Nothing is wrong." in verdict
    assert re.search(r"nats (above|below) a full-covariance Gaussian", verdict)
    assert "log-likelihood of validation rows" in page_of("array").read_text(encoding="utf-8")
    assert "Wrong" not in verdict
    verdict = bad[bad.index("Verdict") : bad.index("Samples")]
    assert re.search(r"\d+ of \d+ checks found something wrong|Nothing is wrong", verdict)


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.whole) for name in ("array", "isotropic"))]
)
def test_a_page_holds_no_address_and_every_picture(name, page_of):
    page = page_of(name).read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) > (7 if name == "array" else 30)  # a table has no player of frames
    assert all(source.startswith("data:") for source in sources)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page)


def test_the_page_is_titled_by_the_folder(trained, tmp_path):
    folder = tmp_path / "my <wines>"
    shutil.copytree(trained / "digits", folder)
    page = report(runs.read(folder)).read_text(encoding="utf-8")
    assert "<title>my &lt;wines&gt; · grbm</title>" in page
    assert "Preset digits" in text_of(folder / runs.REPORT)


def test_damaged_files_do_not_spoil_a_report(trained, tmp_path):
    """Of a killed run: half a table, no scores, no data."""
    shutil.copytree(trained / "array", tmp_path / "run")
    (tmp_path / "run" / runs.EVALUATION).write_text("{")
    (tmp_path / "run" / runs.STATUS).unlink()
    config = json.loads((tmp_path / "run" / runs.CONFIG).read_text())
    (tmp_path / "run" / runs.CONFIG).write_text(json.dumps(config | {"data": str(tmp_path / "gone.npy")}))
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    text = text_of(tmp_path / "run" / runs.REPORT)
    assert "training has not ended" in text
    assert "Not at hand" in text


def test_scores_of_other_weights_are_not_shown(trained, tmp_path):
    """As after more training, or of --weights best; and what is no table at all."""
    shutil.copytree(trained / "digits", tmp_path / "a <b> & c")
    run = runs.read(tmp_path / "a <b> & c")
    assert "-12.35" in text_of(report(run))
    with torch.no_grad():
        run.model.b += 1
    page = report(run).read_text(encoding="utf-8")
    assert "-12.35" not in page
    assert "100 images." not in page
    assert "<b> & c" not in page
    assert "a &lt;b&gt; &amp; c" in page
    for name in (runs.EVALUATION, runs.FID, runs.MIXING):
        (run.folder / name).write_text("[]")
    report(run)


def test_training_on_forgets_what_was_measured_before(tmp_path):
    folder = tmp_path / "run"
    assert cli.main(["train", "digits", *QUIET, "--checkpoint.updates", "20", "--out", str(folder)]) == 0
    names = (runs.EVALUATION, runs.FID, runs.MIXING, runs.REPORT)
    for name in names:
        (folder / name).write_text("{}")
    assert cli.main(["resume", str(folder), "--no-figures"]) == 0  # finished: nothing is trained, nothing forgotten
    assert all((folder / name).is_file() for name in names)
    (folder / runs.STATUS).unlink()
    assert cli.main(["resume", str(folder), "--no-figures"]) == 0
    assert not any((folder / name).is_file() for name in names)


@pytest.mark.parametrize("name", ["digits", pytest.param("isotropic", marks=pytest.mark.whole)])
def test_chains_that_leave_the_finite_numbers_have_a_page_that_says_so(name, trained, tmp_path):
    run = runs.read(trained / name)
    config = replace(run.config.sampling, sampler=SamplerConfig("langevin", step_size=1e30))
    run = run._replace(folder=tmp_path, config=replace(run.config, sampling=config))
    assert "end in NaN or infinite numbers" in text_of(report(run))


def test_runs_side_by_side_differ_in_what_is_shown(trained, tmp_path, capsys, monkeypatch):
    made = []
    monkeypatch.setattr(
        "grbm.report.page.compare", lambda *args, **options: made.append(compare(*args, **options)) or made[-1]
    )
    command = ["compare", str(trained / "digits"), str(trained / "other"), "--out", str(tmp_path / "page.html")]
    assert cli.main(command) == 0
    (table,) = made
    printed = capsys.readouterr().out
    rows = {row[0]: row[1:] for row in table}
    assert rows[""] == ("digits", "other")
    assert rows["model.n_hidden"] == ("256", "32")
    assert rows["train.learning_rate"] == ("0.04", "0.3")
    assert rows["log-likelihood, held out, nats"] == ("-12.35 ± 0.25", "–")
    assert rows["updates done"] == ("40", "40")
    assert rows["images scored"] == ("100", "–")
    assert "train.batch_size" not in rows
    assert all(text.startswith(("wrong: ", "nothing is wrong")) for text in rows["the doctor"])
    every = [[m["energy_distance"] for m in runs.read(trained / name).metrics] for name in ("digits", "other")]
    expected = [f"{max(0, sum(x[-5:]) / len(x[-5:])):.3g}" for x in every]  # of short runs; their last ones are noise
    assert rows["energy distance of chains to data"] == tuple(expected)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("Training images: digits.") == 1
    assert all(name in printed for name in ("model.n_hidden", "train.learning_rate", "-12.35 ± 0.25"))
    assert cli.main(command) == 2
    assert str(tmp_path / "page.html") in capsys.readouterr().err
    assert cli.main(["compare", str(trained / "digits")]) == 2
    assert "grbm compare" in capsys.readouterr().err


@pytest.mark.whole
def test_runs_on_different_data_stand_side_by_side(trained, tmp_path):
    table = compare([runs.read(trained / name) for name in ("digits", "isotropic")], tmp_path / "page.html")
    rows = {row[0]: row[1:] for row in table}
    assert rows["dataset.name"] == ("digits", "isotropic")
    assert rows["log-likelihood, held out, nats"][0] == "-12.35 ± 0.25"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no browser: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    flags += f"disable-component-update disable-sync user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in flags.split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield window
    window.quit()


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_follows_the_colours_of_the_browser(scheme, browser, trained):
    """Charts, drawn dark on clear, are turned over in the dark; samples and photographs never are."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(report(runs.read(trained / "digits")).as_uri())
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    paper, ink = (
        [int(x) for x in re.findall(r"\d+", browser.execute_script(style, "body", name))[:3]]
        for name in ("backgroundColor", "color")
    )
    assert (sum(paper) < sum(ink)) == (scheme == "dark")
    assert browser.execute_script(style, "img.pixels", "filter") == "none"
    assert (browser.execute_script(style, "img.chart", "filter") == "none") == (scheme == "light")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.whole
@pytest.mark.parametrize("name", ["digits", "isotropic", "compare"])
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_and_plays_it(name, width, browser, trained, tmp_path):
    """No complaint on the console, every picture decoded, nothing wider than the window, the scrubber scrubs."""
    if name == "compare":
        path = tmp_path / "page.html"
        compare([runs.read(trained / run) for run in ("digits", "isotropic")], path)
    else:
        path = report(runs.read(trained / name))
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    sizes = browser.execute_script("return [...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    assert len(sizes) > 30
    assert min(sizes) > 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    (player, *_) = browser.find_elements("css selector", ".player")
    slider, label = (player.find_element("css selector", tag) for tag in ("input", "output"))

    def shown():
        return [f.get_attribute("data-step") for f in player.find_elements("css selector", "img") if f.is_displayed()]

    last = shown()
    assert len(last) == 1
    assert label.text == f"step {last[0]}"
    browser.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert shown() == ["0"]
    assert label.text == "step 0"
    button = player.find_element("css selector", "button")
    browser.execute_script("arguments[0].click()", button)
    assert button.text == "Pause"
    browser.execute_async_script("setTimeout(arguments[0], 500)")
    assert int(shown()[0]) > 0
    browser.execute_script("arguments[0].click()", button)
    assert button.text == "Play"
    assert browser.get_log("browser") == []
