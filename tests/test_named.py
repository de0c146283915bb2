"""Tables from files: what is read as numbers, what is left out, and where the first wrong value stands."""

import gzip
import math

import numpy as np
import pandas
import pytest
import torch

from grbm import UserError, cli, runs
from grbm.data import arrays, delimited
from grbm.data.delimited import Reading, fill_text
from grbm.data.named import open_table, write_table
from tests.helpers import TINY, refused

NAN = math.nan
AB = [[1.0, 2.0], [3.0, 4.0]]


def numbers(table):
    return table.rows[:].tolist()


@pytest.mark.parametrize(
    ("name", "content", "columns", "rows"),
    [
        ("plain.csv", "1,2\n3,4\n", (), AB),
        ("head.csv", "a,b\n1,2\n3,4\n", ("a", "b"), AB),
        ("mark.csv", '\ufeffa,"b, c"\n1,2\n3,4\n', ("a", "b, c"), AB),
        ("quoted.csv", 'a,"b ""c"""\r\n"1","2"\r\n"3","4"\r\n', ("a", 'b "c"'), AB),
        ("semicolons.csv", "a;b\n1;2\n3;4\n", ("a", "b"), AB),
        ("decimal comma.csv", "a;b\n1,5;2\n3,25;4\n", ("a", "b"), [[1.5, 2], [3.25, 4]]),
        ("bar.dat", "a|b\n1|2\n3|4\n", ("a", "b"), AB),
        ("tabs.tsv", "a\tb c\n1\t2\n3\t4\n", ("a", "b c"), AB),
        ("spaces.txt", "  1.0   2.0\n  3.0   4.0\n", (), AB),
        ("spaces and names.dat", "# a b\n1.0 2.0\n3.0 4.0\n", ("a", "b"), AB),
        ("empty lines.csv", "\n\na,b\n\n1,2\n\n3,4\n\n", ("a", "b"), AB),
        ("at the end.csv", "a,b,\n1,2,\n3,4,\n", ("a", "b"), AB),
        ("at the end of rows.csv", "a,b\n1,2,\n3,4,\n", ("a", "b"), AB),
        ("twice.csv", "a,a\n1,2\n3,4\n", ("a", "a.1"), AB),
        ("rows counted.csv", ",a,b\n0,1,2\n1,3,4\n", ("a", "b"), AB),
        ("truth.csv", "a,b\nTrue,2\nfalse,4\n", ("a", "b"), [[1, 2], [0, 4]]),
        ("gaps.csv", "a,b\n1,NA\n,4\n", ("a", "b"), [[1, NAN], [NAN, 4]]),
        ("latin.csv", "größe,b\n1,2\n3,4\n".encode("latin-1"), ("größe", "b"), AB),
        ("utf16.csv", "a,b\n1,2\n3,4\n".encode("utf-16"), ("a", "b"), AB),
        ("packed.csv.gz", gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0), ("a", "b"), AB),
        ("one.csv", "x\n1\n2\n", ("x",), [[1], [2]]),
        ("text.csv", "name,x,day\nford,1,2020-01-01\nvw,2,2020-01-02\n", ("x",), [[1], [2]]),
        ("names like others.csv", "a,a,a.1\n1,2,3\n4,5,6\n", ("a", "a.2", "a.1"), [[1, 2, 3], [4, 5, 6]]),
        ("rows of gaps.csv", "a,b\n1,2\n,\n3,4\n", ("a", "b"), [[1, 2], [NAN, NAN], [3, 4]]),
        ("space before quotes.csv", 'a, b\n1, "2"\n3, "4"\n', ("a", "b"), AB),
        ("zero before comma.csv", "a;b\n0,125;1\n1,250;2\n", ("a", "b"), [[0.125, 1], [1.25, 2]]),
        ("german dates.csv", "day;x\n01.02.2020;1\n02.02.2020;2\n", ("x",), [[1], [2]]),
        ("line separator.csv", "a\u2028x,b\n1,2\n3,4\n", ("a\u2028x", "b"), AB),
        ("parquet by name.csv", "PAR1,PAR2\n1,2\n3,4\n", ("PAR1", "PAR2"), AB),
        ("odd nan.csv", "a,b\n1,NAN\n2,3\n", ("a", "b"), [[1, NAN], [2, 3]]),
        ("text in the first line.csv", "5.1,3.5,setosa\n4.9,3.0,setosa\n", ("0", "1"), [[5.1, 3.5], [4.9, 3.0]]),
    ],
)
def test_text_is_read_as_a_person_reads_it(tmp_path, name, content, columns, rows):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    table = open_table(tmp_path / name)
    assert table.columns == columns
    np.testing.assert_array_equal(numbers(table), rows)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("a,b\n", ["no rows"]),
        ("a,b\n1,2\n3,4,5\n", ["line 3", "3 values", "2"]),
        ("a,b\n1,2\n3\n", ["line 3", "1 values", "2"]),
        ("a,b\n1,2\n3,4\n?,5\n6,7\n", ["line 4", "'a'", "'?'", "--na"]),
        ('a,b\n"x\ny",2\n"z",x4\n', ["line 4", "'b'", "'x4'"]),
        ("a,b\n<x,2\n0.7,4\n0.6,4\n", ["line 2", "'a'", "'<x'"]),
        ("a,b\n<5,2\n>3,4\n4,4\n", ["'a'", "exclude"]),
        ('a,b\n"1,500",2\n3,4\n', ["line 2", "'1,500'", "thousands"]),
        ("a;b\n1,500;2\n3,250;4\n", ["line 2", "'1,500'", "thousands"]),
        ("a,b\n1_000,2\n3,4\n", ["line 2", "'1_000'"]),
        ("a,b\nx,y\nz,w\n", ["no column of numbers"]),
        ('a,t\n1,x\n2,"y\n3,z\n4,"w\n5,v\n', ["line 5", "quotes"]),
        ('a,t\n1,x\n2,"y\n3,z\n4,w\n', ["quotes"]),
        ("a,b\n1,1e400\n2,3\n", ["line 2", "'1e400'"]),
        ("a;b\n1,5;2,25\n1,5;1.234\n" * 1, ["line 2", "'1,5'"]),
        ("\0\1\2\0", ["no text"]),
    ],
)
def test_what_is_no_number_is_named_with_its_line(tmp_path, content, words):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UserError) as caught:
        open_table(tmp_path / "x.csv")
    for word in ["x.csv", *words]:
        assert word in str(caught.value)


def test_columns_are_taken_and_left_by_name_and_number(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,c,t\n1,2,?,u\n3,4,5,v\n")
    how = Reading(missing=("?",))
    assert open_table(tmp_path / "x.csv", how).columns == ("a", "b", "c")
    assert dict(open_table(tmp_path / "x.csv", how).left_out) == {"t": "text such as 'u'"}
    assert numbers(open_table(tmp_path / "x.csv", Reading(columns=("b", "0")))) == [[2, 1], [4, 3]]
    assert open_table(tmp_path / "x.csv", Reading(drop=("c", "1"))).columns == ("a",)
    for how, word in ((Reading(columns=("d",)), "'d'.*a, b, c, t"), (Reading(columns=("t",)), "holds no numbers")):
        with pytest.raises(UserError, match=word):
            open_table(tmp_path / "x.csv", how)
    with pytest.raises(UserError, match="No column"):
        open_table(tmp_path / "x.csv", Reading(drop=("a", "b", "c", "t")))
    np.savez(tmp_path / "x.npz", x=np.array(AB), columns=np.array(["a", "b"]))
    assert numbers(open_table(tmp_path / "x.npz", Reading(drop=("a",)))) == [[2], [4]]


@pytest.mark.parametrize("decimal", [".", ","])
def test_large_files_are_read_by_pandas_to_the_same_digits(tmp_path, monkeypatch, decimal):
    """And by this library where pandas would fill up short lines, with the sentence that names them."""
    x = np.random.default_rng(0).normal(size=(4000, 3)) * [1, 1e-9, 1e12]
    x[7, 0] = NAN
    lines = [";".join("" if math.isnan(v) else repr(v).replace(".", decimal) for v in row) for row in x.tolist()]
    (tmp_path / "x.csv").write_text("a;b;c\n" + "\n".join(lines) + "\n")
    slow = open_table(tmp_path / "x.csv")
    np.testing.assert_array_equal(numbers(slow), x)
    monkeypatch.setattr(delimited, "LARGE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(delimited, "_numbers", None)  # not asked
        np.testing.assert_array_equal(numbers(open_table(tmp_path / "x.csv")), x)
    for wrong, word in (("1;2", "2 values"), ("1;2;3;4", "4 values"), ("1;x;3", "'x'")):
        (tmp_path / "x.csv").write_text("a;b;c\n" + "\n".join([*lines[:9], wrong, *lines[9:]]) + "\n")
        with pytest.raises(UserError, match=f"line 11.*{word}"):
            open_table(tmp_path / "x.csv")


@pytest.mark.parametrize("large", [1 << 20, 0])
def test_numbers_beyond_memory_are_read_from_the_disk(tmp_path, monkeypatch, large):
    """The same ones, by either reader and in parts, with limits, gaps and columns that are left out; nothing stays."""
    x = np.random.default_rng(0).normal(size=(500, 3)).round(3)
    x[7, 0], x[400, 2] = NAN, NAN
    rows = [",".join(["" if math.isnan(v) else repr(v) for v in row]) for row in x.tolist()]
    lines = [f"{k},{row},,word" for k, row in enumerate(rows)]
    (tmp_path / "x.csv").write_text(",a,b,c,none,text\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(delimited, "LARGE", large)
    expected = open_table(tmp_path / "x.csv")
    assert expected.columns == ("a", "b", "c")
    assert dict(expected.left_out) == {
        "unnamed 0": "it numbers the rows",
        "none": "empty",
        "text": "text such as 'word'",
    }
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(delimited, "CHUNK", 64)
    monkeypatch.setattr(delimited, "PART", 64 * 6)
    monkeypatch.setattr(arrays, "IN_MEMORY", 100 * 5 * 8)
    held = []
    monkeypatch.setattr(arrays.Mapped, "__init__", noted(held, arrays.Mapped.__init__))
    found = open_table(tmp_path / "x.csv")
    assert len(held) == 1
    np.testing.assert_array_equal(numbers(found), x)
    np.testing.assert_array_equal(found.rows[torch.tensor([400, 7, 7])], x[[400, 7, 7]])
    assert (found.columns, found.left_out) == (expected.columns, expected.left_out)
    assert list((tmp_path / "cache").iterdir()) == []
    lines = [f"{k + 1},{'' if k > 300 else k}" for k in range(500)]
    (tmp_path / "x.csv").write_text(",late\n" + "\n".join(lines) + "\n")
    assert open_table(tmp_path / "x.csv").left_out == (("unnamed 0", "it numbers the rows"),)
    (tmp_path / "x.csv").write_text("a,b\n" + "<0.5,1\n" * 300 + "0.7,2\n0.1,3\n")
    assert numbers(open_table(tmp_path / "x.csv"))[299:] == [[0.5, 1], [0.7, 2], [0.5, 3]]


def noted(calls, function):
    """``function``, whose calls are counted."""

    def counting(*args):
        calls.append(1)
        return function(*args)

    return counting


def test_numbers_that_do_not_fit_on_the_disk_are_refused_in_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    monkeypatch.setattr(arrays, "IN_MEMORY", 0)

    def full(**given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays.tempfile, "TemporaryFile", full)
    with pytest.raises(UserError, match=r"x\.csv do not fit into .*No space left.*GRBM_CACHE_DIR"):
        open_table(tmp_path / "x.csv")


def test_quotes_that_are_not_whole_swallow_no_lines_of_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "LARGE", 0)
    lines = [f"{k},bolt" for k in range(1000)]
    lines[300], lines[900] = '300,"five inch', '900,"six inch'
    (tmp_path / "x.csv").write_text("size,what\n" + "\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"line 902.*quotes"):
        open_table(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n1e400,3\n")
    with pytest.raises(UserError, match=r"line 3.*1e400"):
        open_table(tmp_path / "x.csv")


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_frames_are_read_by_their_types(tmp_path, kind):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1, 3], "t": ["u", "v"], "b": [2.0, NAN], "yes": [True, False]})
    frame["n"] = pandas.array([1, None], dtype="Int64")
    getattr(frame, f"to_{kind}")(tmp_path / "x")
    table = open_table(tmp_path / "x")
    assert table.columns == ("a", "b", "yes", "n")
    assert [name for name, _ in table.left_out] == ["t"]
    np.testing.assert_array_equal(numbers(table), [[1, 2, 1, 1], [3, NAN, 0, NAN]])
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:100])
    with pytest.raises(UserError, match="could not be read"):
        open_table(tmp_path / "x")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".npz", ".parquet"])
def test_what_is_written_is_read(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    x = np.random.default_rng(0).normal(size=(5, 2))
    write_table(tmp_path / f"x{suffix}", x, ("a", "b, c"))
    table = open_table(tmp_path / f"x{suffix}")
    assert table.columns == ("a", "b, c")
    np.testing.assert_allclose(numbers(table), x, rtol=1e-8)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table with names, gaps and text, in a folder with a run on it."""
    folder = tmp_path_factory.mktemp("people")
    x = np.random.default_rng(0).normal(size=(60, 3)) @ [[1, 0.8, 0.3], [0, 0.6, 0.1], [0, 0, 0.4]] + [10, 20, 30]
    lines = [f"{a:.6g},p{k},{b:.6g},{c:.6g}" for k, (a, b, c) in enumerate(x)]
    lines[4] = lines[4].rpartition(",")[0] + ","
    (folder / "people.csv").write_text("age,name,height,weight\n" + "\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["train", "people.csv", *TINY]) == 0
    return folder


def test_a_file_is_learned_by_name(people, monkeypatch):
    """Its run is called as it is, and knows which rows and columns it is of."""
    monkeypatch.chdir(people)
    run = runs.read(people / "runs" / "people")
    assert run.columns == ("age", "height", "weight")
    data = run.load_data()
    assert len(data.train) + len(data.test) == 59
    assert 4 not in data.numbers[0].tolist() + data.numbers[1].tolist()
    assert max(data.numbers[0].max(), data.numbers[1].max()) == 59  # of the file
    said = list(data.opened.describe("people.csv"))
    assert "name (text such as 'p0')" in said[0]
    assert "1 of 60 rows" in said[1]


def test_what_comes_out_is_of_the_kind_that_went_in(people, capsys):
    """Gaps are filled where they stand; all else of the file is as it was. Columns of other files go by their names."""
    run, file = people / "runs" / "people", people / "people.csv"
    assert cli.main(["impute", str(run), str(file), "--steps", "20", "--overwrite"]) == 0
    before, after = (path.read_text().splitlines() for path in (file, run / "imputed" / "people.csv"))
    changed = [k for k in range(len(before)) if before[k] != after[k]]
    assert changed == [5]
    assert after[5].startswith(before[5])
    assert 25 < float(after[5].rpartition(",")[2]) < 35
    assert open_table(run / "imputed" / "people.std.csv").columns == ("age", "height", "weight")
    assert cli.main(["sample", str(run), "--n", "7", "--out", str(people / "new.csv"), "--overwrite"]) == 0
    drawn = pandas.read_csv(people / "new.csv")
    assert list(drawn.columns) == ["age", "height", "weight"]
    drawn[["weight", "age", "height"]].to_csv(people / "other.csv", index=False)
    for name in ("new", "other"):
        out = people / f"{name}.npy"
        assert cli.main(["encode", str(run), str(people / f"{name}.csv"), "--out", str(out), "--overwrite"]) == 0
    assert np.array_equal(np.load(people / "new.npy"), np.load(people / "other.npy"))
    capsys.readouterr()
    (people / "less.csv").write_text("age,height\n1,2\n3,4\n")
    refused(["encode", run, people / "less.csv"], capsys, "'weight'", "less.csv")
    refused(["sample", run, "--out", people / "x.abc"], capsys, ".csv", "x.abc")


def test_the_settings_of_a_run_learn_its_file_again(people, monkeypatch):
    """`--config` alone, without a preset or a file."""
    monkeypatch.chdir(people)
    assert cli.main(["train", "--config", "runs/people", "--no-figures"]) == 0
    first, again = (runs.read(people / "runs" / name) for name in ("people", "array"))
    assert runs.model_digest(first.model) == runs.model_digest(again.model)
    assert again.columns == ("age", "height", "weight")


def test_few_rows_without_gaps_are_refused(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b,c\n" + "1,2,3\n" * 4 + "1,,3\n" * 6)
    refused(["train", tmp_path / "x.csv"], capsys, "4 of 10", "b 6", "--drop")


def test_marks_are_limits(tmp_path):
    """A column has the highest of its limits below which values lie, whatever was measured under it."""
    (tmp_path / "x.csv").write_text("a,b,c\n<0.5,2,1\n0.7,> 4,2\n<=0.2,3,3\n0.3,>5,4\n")
    table = open_table(tmp_path / "x.csv")
    assert numbers(table) == [[0.5, 2, 1], [0.7, 4, 2], [0.5, 3, 3], [0.5, 4, 4]]
    assert [end.tolist() for end in table.limits] == [[0.5, -math.inf, -math.inf], [math.inf, 4, math.inf]]
    said = list(table.describe("x.csv"))
    assert said == [
        "x.csv, a: 3 values lie below a limit, and all count as below 0.5.",
        "x.csv, b: 2 values lie above a limit, and all count as above 4.",
    ]
    assert open_table(tmp_path / "x.csv", Reading(columns=("c", "a"))).limits.low.tolist() == [-math.inf, 0.5]


def test_marked_values_are_censored(tmp_path, capsys):
    """Limits come from the file; samples have them in the share of the data; other files must have no others."""
    rng = np.random.default_rng(0)
    v = rng.multivariate_normal([0.3, 0], [[1, 0.8], [0.8, 1]], size=600)
    lines = [f"{'<0' if a < 0 else format(a, '.6g')},{b:.6g}" for a, b in v]
    (tmp_path / "x.csv").write_text("lead,zinc\n" + "\n".join(lines) + "\n")
    out = ["--out", str(tmp_path / "run"), "--no-figures", "--log.no-tensorboard"]
    assert cli.main(["train", str(tmp_path / "x.csv"), "--n-hidden", "4", "--updates", "400", *out]) == 0
    assert "lead: 213 values lie below a limit" in capsys.readouterr().err
    run = runs.read(tmp_path / "run")
    assert run.config.dataset.censor == "marks"
    assert run.frame.censoring.low.tolist() == [0, -math.inf]
    assert cli.main(["sample", str(tmp_path / "run"), "--n", "4000", "--out", str(tmp_path / "new.csv")]) == 0
    lead = pandas.read_csv(tmp_path / "new.csv")["lead"]
    assert (lead >= 0).all()
    assert abs((lead == 0).mean() - 213 / 600) < 0.08
    (tmp_path / "y.csv").write_text("zinc,lead\n1,<-0.5\n1,<0\n")
    assert cli.main(["encode", str(tmp_path / "run"), str(tmp_path / "y.csv")]) == 0
    codes = np.load(tmp_path / "run" / "codes" / "y.npy")
    assert np.array_equal(codes[0], codes[1])  # below the run's own limit they count as at it
    (tmp_path / "y.csv").write_text("lead,zinc\n<0.5,1\n")
    refused(["encode", tmp_path / "run", tmp_path / "y.csv"], capsys, "lead", "0.5", "measurements")
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0


def test_columns_that_stop_are_said(tmp_path, capsys):
    rain = np.random.default_rng(0).normal(size=300).clip(0)
    x = np.c_[rain, np.random.default_rng(1).normal(size=300)]
    write_table(tmp_path / "x.csv", x, ("rain", "wind"))
    assert cli.main(["train", str(tmp_path / "x.csv"), *TINY, "--out", str(tmp_path / "run")]) == 0
    assert "('rain') holds 0, its lowest number, in 5" in capsys.readouterr().err


def test_numbers_that_mean_missing_do_so_in_files_of_any_size(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n-999,4\n5,-999.0\n")
    how = Reading(missing=("-999",))
    for large in (1 << 20, 0):
        monkeypatch.setattr(delimited, "LARGE", large)
        np.testing.assert_array_equal(numbers(open_table(tmp_path / "x.csv", how)), [[1, 2], [NAN, 4], [5, NAN]])


def test_what_the_file_does_not_tell_can_be_said(tmp_path):
    (tmp_path / "x.csv").write_text("n;2019;2020\na;1,250;2\nb;2,250;3\n")
    with pytest.raises(UserError, match="--decimal ,"):
        open_table(tmp_path / "x.csv")
    table = open_table(tmp_path / "x.csv", Reading(decimal=",", header=True))
    assert table.columns == ("2019", "2020")
    assert numbers(table) == [[1.25, 2], [2.25, 3]]
    table = open_table(tmp_path / "x.csv", Reading(decimal=",", header=False))
    assert table.columns == ("1", "2")
    assert any("--header True" in text for text in open_table(tmp_path / "x.csv", Reading(decimal=",")).remarks)
    (tmp_path / "x.csv").write_text("a;b\n1,5;2\n")
    assert any("'1,5'" in text for text in open_table(tmp_path / "x.csv").remarks)


def test_long_lines_and_many_columns(tmp_path):
    """A first line of two mebibytes, and a cell of 200,000 characters."""
    n = 20_000
    (tmp_path / "wide.csv").write_text(
        ",".join(f"{'gene' * 25} {k:06}" for k in range(n)) + "\n" + ",".join("1" * n) + "\n"
    )
    assert open_table(tmp_path / "wide.csv").rows.shape == (1, n)
    (tmp_path / "long.csv").write_text("a,t\n1," + "x" * 200_000 + "\n2,y\n")
    assert numbers(open_table(tmp_path / "long.csv")) == [[1], [2]]


@pytest.mark.parametrize("kind", ["absent", "folder", "truncated"])
def test_files_that_cannot_be_read_are_named(tmp_path, kind):
    path = tmp_path / "x.csv.gz"
    if kind == "folder":
        path.mkdir()
    if kind == "truncated":
        path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:-12])
    with pytest.raises(UserError, match=r"x\.csv\.gz"):
        open_table(path)


def test_files_are_filled_as_they_are_written(tmp_path):
    """Decimal commas, text, marks, line ends, an encoding that is not UTF-8, and columns that were left out stay."""
    content = 'n;a;b;c\r\n"é;1";1,5;;<0,5\r\nx;NAN;2,25;3\r\n'.encode("cp1252")
    (tmp_path / "x.csv").write_bytes(content)
    table = open_table(tmp_path / "x.csv", Reading(columns=("c", "a")))
    assert table.places == (3, 1)
    assert open_table(tmp_path / "x.csv").picked(("c", "a"), "x").places == (3, 1)
    n = fill_text(
        tmp_path / "x.csv", tmp_path / "y.csv", np.array([[9.0, 9.0], [9.0, 12345.5]]), table.places, Reading()
    )
    assert n == 1
    assert (tmp_path / "y.csv").read_bytes() == content.replace(b"NAN", b"12345,5")


def test_one_row_with_gaps_is_filled(people):
    """A column may be empty in a file for a run that has it."""
    (people / "one.csv").write_text("age,height,weight,note\n10,,30,x\n")
    assert cli.main(["impute", str(people / "runs" / "people"), str(people / "one.csv"), "--steps", "8"]) == 0
    filled = (people / "runs" / "people" / "imputed" / "one.csv").read_text().splitlines()[1].split(",")
    assert 15 < float(filled[1]) < 25
    assert filled[0::2] == ["10", "30"]


def test_filled_numbers_have_as_many_digits_as_their_column_tells_apart(tmp_path):
    """Six, or as many as a hundred-thousandth of its deviation takes. What was there stays, and steps do, and what lies
    just inside a bound.
    """
    (tmp_path / "x.csv").write_text("a,time\n2.70361674504804567,1600000000\n,\n1.5,1700000000\n")
    filled = np.array([[2.7, 1.6e9], [21.22398719956211, 1623456789.123456], [1.5, 1.7e9]])
    assert fill_text(tmp_path / "x.csv", tmp_path / "y.csv", filled, (0, 1), Reading()) == 2
    lines = (tmp_path / "y.csv").read_text().splitlines()
    assert lines == ["a,time", "2.70361674504804567,1600000000", "21.224,1623457000.0", "1.5,1700000000"]
    (tmp_path / "x.csv").write_text("count,share\n,0.5\n1,\n")
    filled = np.array([[1234567.25, 0.5], [1.0, 0.99999991234567]])
    assert fill_text(tmp_path / "x.csv", tmp_path / "y.csv", filled, (0, 1), Reading()) == 2
    assert (tmp_path / "y.csv").read_text().splitlines()[1:] == ["1234567.25,0.5", "1,0.99999991234567"]
