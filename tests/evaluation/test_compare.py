"""`verl-grail compare` on folders with known scores: pairs, tests by hand, refusals, tables and the plot."""

from __future__ import annotations

import json
import math
import statistics

import matplotlib
import numpy as np
import pytest

from verl_grail.cli import main
from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.compare import Power, check_alike, compare, load_run
from verl_grail.evaluation.significance import detectable, wilcoxon_power
from verl_grail.evaluation.store import write_json, write_lines
from verl_grail.evaluation.summary import ProblemLine, ProblemRun, as_records
from verl_grail.evaluation.tables import latex, markdown, report

SETTINGS = {"sampling": {"samples": 4, "temperature": 0.6}, "instruction": "boxed", "seed": 0}


def write_run(folder, method, benchmarks, base="", n=4, settings=None, digest="d"):
    """A finished evaluation. benchmarks: name -> right samples out of n, (runs, problems)."""
    for name, counts in benchmarks.items():
        columns = np.array(counts).T.tolist()
        runs = [[ProblemRun(n, c, float(2 * c > n)) for c in column] for column in columns]
        lines = [ProblemLine(f"p{i}", "1", r) for i, r in enumerate(runs)]
        write_lines(folder / "problems" / f"{name}.jsonl", as_records(lines))
    digests = {name: f"{digest}-{name}" for name in benchmarks}
    labels = {"method": method, "base": base}
    write_json(folder / "run.json", {"settings": settings or SETTINGS, "labels": labels, "benchmarks": digests})
    summary = {"metrics": ["accuracy", "pass@2", "majority@4"], "benchmarks": dict.fromkeys(benchmarks)}
    write_json(folder / "summary.json", summary)
    return str(folder)


A = {"aime": [[0, 1, 2, 4], [1, 1, 1, 3], [0, 2, 2, 3]], "math": [[4, 4, 2, 3]] * 3}
B = {"aime": [[1, 2, 3, 4], [1, 2, 1, 4], [1, 3, 4, 3]], "math": [[4, 4, 3, 3]] * 3}


@pytest.fixture
def two(tmp_path):
    return write_run(tmp_path / "a", "grpo", A), write_run(tmp_path / "b", "grail", B)


def test_a_cell_by_hand(two):
    (found,) = compare([load_run(r) for r in two], "accuracy", "grpo")
    aime, math_ = found.cells
    by_run = [(10 - 7) / 16, (8 - 6) / 16, (11 - 7) / 16]
    assert (aime.baseline, aime.method) == (pytest.approx(20 / 48), pytest.approx(29 / 48))
    assert aime.by_unit == pytest.approx(by_run) and aime.problems == 4
    t = statistics.mean(by_run) / (statistics.stdev(by_run) / math.sqrt(3))
    assert aime.t.statistic == pytest.approx(t) and aime.t.effect == pytest.approx(t / math.sqrt(3))
    # two degrees of freedom: P(|T| > t) = 1 - t / sqrt(2 + t^2)
    assert aime.t.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert math_.difference == 0.0625 and math_.t.p is None and "all 3 differences are equal" in math_.t.note
    assert aime.p_holm == aime.t.p and math_.p_holm is None  # one test is left
    assert aime.interval.low < aime.difference < aime.interval.high
    assert found.mean == pytest.approx((9 / 48 + 1 / 16) / 2)
    mean_by_run = [(d + 1 / 16) / 2 for d in by_run]
    overall = statistics.mean(mean_by_run) / (statistics.stdev(mean_by_run) / math.sqrt(3))
    assert found.units_t.statistic == pytest.approx(overall)
    assert found.wilcoxon.statistic == 3 and found.wilcoxon.p == 0.5 and found.wilcoxon.effect == 1.0
    assert "2 pairs cannot give a p below 0.5" in found.wilcoxon.note
    sd = statistics.stdev(mean_by_run)
    power = found.power["units_t"]
    assert power.points == pytest.approx(power.detectable * sd) and 0 < power.observed <= 1
    assert found.power["wilcoxon"].detectable is None


def test_other_metrics(two):
    runs = [load_run(r) for r in two]
    (found,) = compare(runs, "pass@2", "grpo")
    pass2 = [0, 0.5, 5 / 6, 1, 1]
    assert found.cells[0].baseline == pytest.approx(np.mean([[pass2[c] for c in run] for run in A["aime"]]))
    (found,) = compare(runs, "majority", "grpo")
    assert found.cells[0].method == pytest.approx(np.mean([[c > 2 for c in run] for run in B["aime"]]))
    with pytest.raises(EvaluationError, match="no base and benchmark in common with a pass@5"):
        compare(runs, "pass@5", "grpo")


def test_methods_are_paired_on_their_base_and_folders_of_one_method_are_runs(tmp_path):
    rng = np.random.default_rng(0)
    runs, expected = [], []
    for base in ("4b", "8b", "llama"):
        low, high = rng.integers(0, 4, (2, 2, 30)), rng.integers(1, 5, (2, 2, 30))
        expected += [(high[:, k].mean() - low[:, k].mean()) / 4 for k in range(2)]
        for method, counts in (("grpo", low), ("grail", high)):
            for seed in range(2):
                folder = tmp_path / f"{method}_{base}_{seed}"
                of = {"aime": counts[seed : seed + 1, 0], "math": counts[seed : seed + 1, 1]}
                runs.append(load_run(write_run(folder, method, of, base)))
    (found,) = compare(runs, "accuracy", "grpo")
    assert [(c.base, c.benchmark) for c in found.cells][:3] == [("4b", "aime"), ("4b", "math"), ("8b", "aime")]
    assert [c.difference for c in found.cells] == pytest.approx(expected)
    assert all(c.t.n == 2 for c in found.cells) and found.wilcoxon.n == 6 and found.units_t.n == 2


def test_folders_are_the_units_where_there_are_several(tmp_path):
    """Three training seeds of ten runs are three pairs, not thirty."""
    rng = np.random.default_rng(1)
    counts = {m: rng.integers(0, 5, (3, 10, 6)) for m in ("grpo", "grail")}
    folders = [write_run(tmp_path / f"{m}{i}", m, {"aime": counts[m][i]}) for i in range(3) for m in counts]
    (found,) = compare([load_run(f) for f in folders], "accuracy", "grpo")
    by_folder = [(counts["grail"][i].mean() - counts["grpo"][i].mean()) / 4 for i in range(3)]
    t = statistics.mean(by_folder) / (statistics.stdev(by_folder) / math.sqrt(3))
    (cell,) = found.cells
    assert (found.unit, cell.t.n, found.units_t.n) == ("folders", 3, 3) and cell.by_unit == pytest.approx(by_folder)
    assert cell.t.statistic == pytest.approx(t) == found.units_t.statistic
    text = report([found])
    assert "| t over folders |" in text and "| paired t | folders | 3 |" in text
    # ten runs of one folder are no pairs of two folders with five
    split = [write_run(tmp_path / f"half{i}", "grpo", {"aime": counts["grpo"][0][5 * i :][:5]}) for i in range(2)]
    (found,) = compare([load_run(f) for f in (*split, folders[1])], "accuracy", "grpo")
    assert found.units_t.p is None and found.cells[0].t.note == "2 folders against 1: folders are paired in order"


def test_the_mean_is_resampled_with_the_same_problems_under_every_base(tmp_path):
    """Three bases that move alike on the same problems are no three times as many problems."""
    rng = np.random.default_rng(2)
    low, high = rng.integers(0, 3, (1, 40)), rng.integers(0, 5, (1, 40))
    runs = [
        load_run(write_run(tmp_path / f"{method}{base}", method, {"aime": counts}, base))
        for base in ("4b", "8b", "llama")
        for method, counts in (("grpo", low), ("grail", high))
    ]
    (one,) = compare(runs[:2], "accuracy", "grpo")
    (three,) = compare(runs, "accuracy", "grpo")
    assert three.mean == pytest.approx(one.mean)
    width = one.interval.high - one.interval.low
    assert three.interval.high - three.interval.low == pytest.approx(width, rel=0.02)
    assert width == pytest.approx(2 * 1.96 * (high - low)[0].std() / 4 / math.sqrt(40), rel=0.1)
    # a problem that one base lacks is left out of that base alone
    lines = (tmp_path / "grail8b/problems/aime.jsonl").read_text().splitlines()
    (tmp_path / "grail8b/problems/aime.jsonl").write_text("\n".join(lines[1:]) + "\n")
    runs[3] = load_run(str(tmp_path / "grail8b"))
    (less,) = compare(runs, "accuracy", "grpo")
    assert [c.problems for c in less.cells] == [40, 39, 40]
    assert less.interval.high - less.interval.low == pytest.approx(width, rel=0.05)


def test_the_power_of_wilcoxon_is_that_of_the_pairs_it_uses(tmp_path):
    up = [[1, 2, 2, 1], [0, 1, 1, 1], [2, 2, 1, 1], [0, 0, 0, 1], [3, 3, 3, 2], [1, 1, 1, 4]]
    low = {f"b{i}": [[0, 0, 0, 0]] for i in range(6)} | {f"z{i}": [[1, 2, 3, 4]] for i in range(8)}
    high = low | {f"b{i}": [counts] for i, counts in enumerate(up)}
    runs = [load_run(write_run(tmp_path / m, m, c)) for m, c in (("grpo", low), ("grail", high))]
    (found,) = compare(runs, "accuracy", "grpo")
    moved = [sum(counts) / 16 for counts in up]
    power = found.power["wilcoxon"]
    assert found.wilcoxon.n == 6 and found.cells_t.n == 14
    assert power.observed == wilcoxon_power(6, statistics.mean(moved) / statistics.stdev(moved))
    assert power.detectable == pytest.approx(detectable(lambda dz: wilcoxon_power(6, dz)))
    assert power.points == pytest.approx(power.detectable * statistics.stdev(moved))
    assert power.detectable > detectable(lambda dz: wilcoxon_power(14, dz)) + 0.3
    none = [load_run(write_run(tmp_path / f"same{m}", m, low)) for m in ("grpo", "grail")]
    assert compare(none, "accuracy", "grpo")[0].power["wilcoxon"] == Power(None, None, None)


def test_what_cannot_be_paired_is_said(tmp_path):
    one = load_run(write_run(tmp_path / "a", "grpo", {"aime": [[0, 1]], "gsm": [[1, 1]]}))
    two = load_run(write_run(tmp_path / "b", "grail", {"aime": [[1, 1], [2, 1]], "math": [[1, 2]]}))
    (found,) = compare([one, two], "accuracy", "grpo")
    assert [c.benchmark for c in found.cells] == ["aime"]
    assert found.cells[0].t.note == "1 runs against 2: runs are paired in order"
    assert found.units_t.p is None and found.power["units_t"].observed is None
    assert found.notes == ["gsm: only grpo was evaluated; left out", "math: only grail was evaluated; left out"]
    with pytest.raises(EvaluationError, match="--baseline ppo is not one of the methods: grpo, grail"):
        compare([one, two], "accuracy", "ppo")
    with pytest.raises(EvaluationError, match="all runs are of the method grpo"):
        compare([one], "accuracy", "grpo")
    far = load_run(write_run(tmp_path / "c", "grail", {"aime": [[1, 1]]}, base="8b"))
    with pytest.raises(EvaluationError, match="no base and benchmark in common"):
        compare([one, far], "accuracy", "grpo")


def test_problems_without_a_score_in_both_are_left_out(tmp_path):
    one, two = write_run(tmp_path / "a", "grpo", A), write_run(tmp_path / "b", "grail", B)
    path = tmp_path / "b/problems/aime.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | {"runs": [{"n": 0, "correct": 0, "vote": None}] * 3})
    path.write_text("\n".join(lines) + "\n")
    runs = [load_run(one), load_run(two)]
    assert runs[1].notes[0].endswith("samples that failed or without a gold: 3 of aime")
    (found,) = compare(runs, "accuracy", "grpo")
    assert found.cells[0].problems == 3 and found.cells[0].baseline == pytest.approx(10 / 36)


def test_runs_that_were_evaluated_differently_are_refused(two, tmp_path):
    hot = {**SETTINGS, "sampling": {"samples": 4, "temperature": 1.0}, "seed": 5}
    other = write_run(tmp_path / "c", "hot", A, settings=hot)
    with pytest.raises(EvaluationError, match=r"sampling\.temperature: 0\.6 against 1\.0\): evaluate both in the same"):
        check_alike([load_run(two[0]), load_run(other)])
    problems = write_run(tmp_path / "d", "other", A, digest="e")
    with pytest.raises(EvaluationError, match="the problems of aime; the problems of math"):
        check_alike([load_run(two[0]), load_run(problems)])
    check_alike([load_run(r) for r in two])
    for name, value in (("engine_args", {"quantization": "fp8"}), ("standard_fields", True)):
        plain = {**SETTINGS, "engine_args": {}, "standard_fields": False}
        pair = [
            write_run(tmp_path / f"{name}{i}", "x", A, settings=s) for i, s in enumerate((plain, plain | {name: value}))
        ]
        with pytest.raises(
            EvaluationError, match=rf"evaluated differently \({name}\S*: (None|False) against (fp8|True)\)"
        ):
            check_alike([load_run(r) for r in pair])
    # a benchmark that the first run lacks
    first = write_run(tmp_path / "e", "first", {"amc": [[1, 2]]})
    with pytest.raises(
        EvaluationError, match=r"a and \S*/d were evaluated differently \(the problems of aime; .* math\)"
    ):
        check_alike([load_run(r) for r in (first, two[0], problems)])


def test_folders_that_are_no_finished_run_are_refused(two, tmp_path):
    with pytest.raises(EvaluationError, match="is no folder of verl-grail eval"):
        load_run(str(tmp_path))
    (tmp_path / "a/summary.json").unlink()
    with pytest.raises(EvaluationError, match="the evaluation did not finish, start it again"):
        load_run(two[0])
    (tmp_path / "a/summary.json").write_text("{}")
    with pytest.raises(
        EvaluationError, match=r"summary.json cannot be read .*'metrics'.*: start verl-grail eval on its"
    ):
        load_run(two[0])
    (tmp_path / "b/run.json").write_text("{}")
    with pytest.raises(EvaluationError, match="cannot be read"):
        load_run(two[1])


def test_names_on_the_command_line(two):
    assert (load_run(two[0]).method, load_run(two[0]).base) == ("grpo", "")
    named = load_run(f"dr_grpo@Qwen3-4B={two[0]}")
    assert (named.method, named.base, str(named.folder)) == ("dr_grpo", "Qwen3-4B", two[0])
    assert load_run(f"x={two[0]}").method == "x"


def test_the_command_prints_and_writes_tables_and_a_plot(two, tmp_path, capsys):
    out = tmp_path / "out"
    files = [
        "--latex",
        f"{out}/t.tex",
        "--plot",
        f"{out}/p.png",
        "--json",
        f"{out}/c.json",
        "--markdown",
        f"{out}/r.md",
    ]
    assert main(["compare", two[0], f"my_method={two[1]}", *files]) == 0
    printed = capsys.readouterr().out
    assert printed == (out / "r.md").read_text()
    assert "## accuracy: my_method against grpo" in printed and "## pass@2: my_method against grpo" in printed
    assert "| - | aime | 41.7 | 60.4 | +18.7 [" in printed and "| mean | 2 pairs | 61.5 | 74.0 | +12.5 [" in printed
    assert "| Wilcoxon signed-rank | model x benchmark | 2 | W+ = 3 | 0.500 | rank-biserial 1.00 |" in printed
    assert "- t of math: all 3 differences are equal" in printed
    tex = (out / "t.tex").read_text()
    assert r"\toprule" in tex and r"my\_method" in tex and tex.count(r"\begin{table}") == 4 and "41.7" in tex
    assert (out / "p.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "c.json").read_text())[0]["cells"][0]["baseline"] == pytest.approx(20 / 48)
    assert main(["compare", two[0], two[1], "--metric", "accuracy", "--alternative", "greater"]) == 0
    assert "| W+ = 3 | 0.250 |" in capsys.readouterr().out
    assert main(["compare", *two, "--metric", "speed"]) == 2
    assert "--metric speed is not accuracy" in capsys.readouterr().err


def test_the_direction_of_the_tests_and_allowed_differences_are_stated_wherever_numbers_are(two, tmp_path, capsys):
    settings = {**SETTINGS, "sampling": {"samples": 4, "temperature": 1.0}}
    hot = write_run(tmp_path / "hot_&_#1", "hot", B, settings=settings)
    files = [f"--{name}={tmp_path / name}" for name in ("latex", "json", "markdown")]
    files.append(f"--plot={tmp_path / 'plot.svg'}")  # svg: text can be read
    command = ["compare", two[0], hot, "--alternative", "greater", *files]
    assert main(command) == 2
    assert "evaluated differently (sampling.temperature" in capsys.readouterr().err
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert main([*command, "--allow-differences"]) == 0
    printed, tex = capsys.readouterr().out, (tmp_path / "latex").read_text()
    plot, (first, *_) = (tmp_path / "plot.svg").read_text(), json.loads((tmp_path / "json").read_text())
    assert "## accuracy: hot against grpo (tests one-sided, for hot greater than grpo)" in printed
    assert "were evaluated differently (sampling.temperature: 0.6 against 1.0)" in printed
    assert tex.count("tests one-sided, for hot greater than grpo.") == tex.count("differently (sampling.temp") == 4
    assert r"hot\_\&\_\#1" in tex
    assert first["alternative"] == "greater" and "sampling.temperature: 0.6 against 1.0" in first["allowed"][0]
    assert "one-sided" in plot and "evaluated" in plot and "sampling.temperature:" in plot
    assert main(["compare", *two]) == 0
    assert "(tests two-sided)" in capsys.readouterr().out


def test_tables():
    assert markdown(["a", "b", "c"], [["x|y", "", "1"]]) == "| a | b | c |\n|---|---|---:|\n| x\\|y |  | 1 |"
    text = latex(["a_b", "c", "d"], [["50%", "x_y", "1"]], "100 % of a_b")
    assert r"a\_b" in text and r"50\%" in text and r"\caption{100 \% of a\_b}" in text and "{llr}" in text
