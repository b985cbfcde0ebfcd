"""The report on small synthetic runs whose numbers can be worked out by hand."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from verl_grail.report import RunRootError, load_runs, print_table, summary_table, write_plots, write_report
from verl_grail.report.__main__ import main
from verl_grail.report.build import choose_rollouts
from verl_grail.report.colours import DARK, LIGHT, contrast, strength
from verl_grail.report.rollouts import Rollout, pick_gar, pick_grail
from verl_grail.report.stats import last_quarter_mean, wilson_interval
from verl_grail.report.table import MISSING, display_table, summary_notes
from verl_grail.report.tokens import clean, tokens_html

ACC = "val-core/arithmetic/acc/mean@2"
TOKENS = [
    "<think>",
    "\n",
    " a",
    " &",
    "&amp;",
    "  ",
    "\t",
    " </think>",
    "\n\n",
    " \\",
    "boxed",
    "{",
    "7",
    "}",
    '"\r\x00',
]
PNG = b"\x89PNG\r\n\x1a\n"


def write_lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rollout_row(uid: str, **changes: Any) -> dict[str, Any]:
    weights = [0.4, 0.5, 0.9, 1.0, 1.1, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0]
    row = {"input": "6 + 1 < x?", "output": "".join(TOKENS), "gts": "7<8", "score": 0.0, "step": 8, "uid": uid}
    row |= {"tokens": TOKENS, "grail_weights": weights, "grail_outcome": "weighted", "answer_span": [9, 14]}
    row |= {"advantages": [-0.5 * w for w in weights], "acc": 0.0}
    return row | {"gar_cosine": None, "gar_bonus": None, "gar_outcome": None} | changes


def train(step: int, **extra: float) -> dict[str, Any]:
    # The share of the log-prob pass is step / 100, except at step 1, whose warm-up must not count.
    data = {"critic/rewards/mean": 0.1 * step, "timing_s/step": 10.0, "timing_s/old_log_prob": 0.1 * step}
    if step == 1:
        data["timing_s/old_log_prob"] = 9.0
    return {"step": step, "data": data | extra}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A plain grpo run, and one with both methods."""
    runs = tmp_path / "runs"
    write_lines(
        runs / "grpo/metrics.jsonl",
        [{"step": 0, "data": {ACC: 0.25}}, *(train(s) for s in range(1, 8)), train(8, **{ACC: 0.5})],
    )
    write_lines(
        runs / "grpo/rollouts/8.jsonl", [{"input": "p", "output": "o", "gts": "1", "score": 1.0, "uid": "a_0_0"}]
    )
    (runs / "grpo/val_n.json").write_text('{"problems": 100, "samples": 2}')
    both = {"grail/weight_mean": 1.0, "grail/answer_found_rate": 0.5, "grail/weight_std": 0.2}
    late = {"grail/weight_mean": 1.1, "grail/answer_found_rate": 0.9, "grail/weight_std": 0.4}
    rows = [train(s, **both, **{"gar/cosine_mean": 0.1}) for s in range(1, 7)]
    rows += [train(7, **late, **{"gar/cosine_mean": 0.3}), train(8, **late, **{"gar/cosine_mean": 0.5, ACC: 0.6})]
    write_lines(runs / "grail_gar/metrics.jsonl", [{"step": 0, "data": {ACC: 0.2}}, *rows])
    right = {"score": 1.0, "acc": 1.0, "grail_outcome": "unselected", "grail_weights": [1.0] * len(TOKENS)}
    dump = [
        rollout_row("p1_0_0"),
        rollout_row("p1_1_0"),
        rollout_row("p2_0_0"),
        rollout_row("p1_2_0", **right, gar_cosine=0.4, gar_bonus=0.0),
        rollout_row("p2_1_0", **right, gar_cosine=0.1, gar_bonus=0.0),
        rollout_row("p2_2_0", **right, gar_cosine=0.7, gar_bonus=0.15),
    ]
    write_lines(runs / "grail_gar/rollouts/8.jsonl", dump)
    write_lines(runs / "grail_gar/rollouts/2.jsonl", [rollout_row("old_0_0")])
    return runs


class Page(HTMLParser):
    """Collects each article's tokens, and whatever the page would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.articles: list[list[str]] = []
        self.titles: list[str] = []
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.in_token = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.sources += [named[key] or "" for key in ("src", "href") if key in named]
        if tag == "article":
            self.articles.append([])
        if tag == "span" and "tok" in (named.get("class") or "").split():
            self.in_token = True
            self.articles[-1].append("")
            self.titles.append(named["title"] or "")

    def handle_endtag(self, tag: str) -> None:
        self.in_token = self.in_token and tag != "span"

    def handle_data(self, data: str) -> None:
        if self.in_token:
            self.articles[-1][-1] += data


def test_wilson_interval_against_hand_values() -> None:
    # 50 of 100: centre 1/2; half width 1.96 sqrt(.0025 + 3.8415/40000) / 1.038415 = .09617
    assert wilson_interval(0.5, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    # 0 of 10: [0, z^2 / (n + z^2)] = 3.8415 / 13.8415
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson_interval(1.0, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)
    for share, n in ((0.5, 0), (1.2, 10)):
        with pytest.raises(ValueError, match="wilson_interval"):
            wilson_interval(share, n)


def test_last_quarter_is_of_the_steps_not_of_the_values() -> None:
    assert last_quarter_mean([(1, 5.0), (7, 1.0), (8, 3.0)], range(1, 9)) == 2.0
    assert last_quarter_mean([(1, 5.0)], range(1, 9)) is None
    assert last_quarter_mean([(2, 5.0)], [1, 2]) == 5.0
    assert last_quarter_mean([], []) is None


def test_table_numbers(root: Path) -> None:
    table = summary_table(load_runs(root)).set_index("method")
    assert list(table.index) == ["grpo", "grail_gar"]
    grpo, both = table.loc["grpo"], table.loc["grail_gar"]
    assert (grpo["steps"], grpo["problems"], grpo["samples"]) == (8, 100, 2)
    assert (grpo["accuracy_before"], grpo["accuracy_after"]) == (0.25, 0.5)
    assert (grpo["ci_low"], grpo["ci_high"]) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    # steps 2..8 take 2, 3, ... 8 % of the step: median 5 %
    assert grpo["signal_share"] == pytest.approx(0.05)
    # last quarter of 8 steps: 7 and 8
    assert both["cosine"] == pytest.approx(0.4)
    assert both["answer_found_rate"] == pytest.approx(0.9)
    assert both["weight_std"] == pytest.approx(0.4)
    missing = grpo[["cosine", "answer_found_rate", "weight_std"]].isna().all()
    assert missing and both[["problems", "ci_low"]].isna().all()


def test_missing_values_are_dashes_in_terminal_and_page(root: Path) -> None:
    from rich.console import Console

    table = summary_table(load_runs(root))
    _, rows = display_table(table)
    assert rows[0] == ["grpo", "8", "0.250", "0.500 [0.404, 0.596]", "100×2", MISSING, MISSING, MISSING, "5.0%"]  # noqa: RUF001
    text = io.StringIO()
    print_table(table, Console(file=text, width=80))
    assert "0.500 [0.404, 0.596]" in text.getvalue()


def test_several_validation_sets_are_averaged_without_an_interval(tmp_path: Path) -> None:
    data = {"val-core/a/acc/mean@1": 0.2, "val-core/b/acc/mean@4": 0.6, "val-core/b/acc/best@4/mean": 1.0}
    write_lines(
        tmp_path / "x/metrics.jsonl", [{"step": 1, "data": data}, {"step": 3, "data": {"critic/score/mean": 1}}]
    )
    (tmp_path / "x/val_n.json").write_text('{"problems": 10, "samples": 1}')
    (run,) = load_runs(tmp_path)
    row = summary_table([run]).iloc[0]
    assert row["accuracy_after"] == pytest.approx(0.4)
    assert row[["accuracy_before", "ci_low"]].isna().all()
    notes = " ".join(summary_notes(run))
    for said in ("plain mean of", "no validation at step 0", "last validation at step 1, last step is 3", "reward.png"):
        assert said in notes


def test_broken_files_become_notes(tmp_path: Path) -> None:
    run = tmp_path / "gar"
    lines = [
        json.dumps({"step": 0, "data": {ACC: 0.5}}),
        "not json",
        "[1]",
        '{"data": {}}',
        '{"step": 1, "data": {"gar/cosine_mean": NaN, "critic/rewards/mean": null, "text": "x", "other": null}}',
        '{"step": 2, "data": {"gar/cosine_mean": 0.5}}',
    ]
    run.mkdir()
    (run / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"step": 3, "data": {"gar/co\xc3')
    (run / "val_n.json").write_text("{")
    broken = [rollout_row("a_0_0", grail_weights=[1.0], answer_span=[3, 99]), {"uid": "b_0_0"}]
    write_lines(run / "rollouts/5.jsonl", broken)
    (run / "rollouts/7.jsonl").touch()
    (run / "rollouts/notes.jsonl").touch()
    (loaded,) = load_runs(tmp_path)
    assert loaded.series("gar/cosine_mean") == [(2, 0.5)]
    assert [r.weights for r in loaded.rollouts] == [()]
    notes = "\n".join(loaded.notes)
    for said in (
        "gar: metrics.jsonl line 2 is not valid JSON",
        "gar: metrics.jsonl line 3 is not a JSON object",
        "gar: metrics.jsonl line 7 is half-written",
        'gar: 1 line(s) of metrics.jsonl lack "step" or "data"',
        "gar: gar/cosine_mean is not a number at 1 step(s) (1)",
        "gar: critic/rewards/mean is not a number",
        "gar: val_n.json cannot be read",
        "gar: rollouts/7.jsonl holds no rollout",
        "rollouts/5.jsonl, 1 row(s): grail_weights and tokens differ in number",
        "answer_span is no range",
        "neither output nor tokens",
    ):
        assert said in notes
    assert "other" not in notes


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts", "val_n.json"])
def test_any_input_may_be_missing(root: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for run in root.iterdir():
        if (run / name).is_dir():
            for path in (run / name).iterdir():
                path.write_text("")
        else:
            (run / name).unlink(missing_ok=True)
    assert write_report(root, tmp_path / "out", "t").is_file()
    assert "note: grpo: " in capsys.readouterr().out


def test_unknown_run_root_is_an_error_with_the_mend(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunRootError, match="is not a folder"):
        load_runs(tmp_path / "nowhere")
    with pytest.raises(RunRootError, match="it is itself a run, pass"):
        load_runs(root / "grpo")
    with pytest.raises(RunRootError, match="no run found"):
        load_runs(root / "grpo/rollouts")
    assert main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert "error: run root" in capsys.readouterr().err


def test_plots_are_pngs_and_only_where_there_is_data(root: Path, tmp_path: Path) -> None:
    files, notes = write_plots(load_runs(root), tmp_path / "out")
    assert [path.name for path in files.values()] == ["reward.png", "accuracy.png", "weights.png", "cosine.png"]
    assert not notes
    for path in files.values():
        assert path.read_bytes().startswith(PNG) and path.stat().st_size > 5000
    # A second report into the same folder must not keep the first one's picture.
    grpo_only = [run for run in load_runs(root) if run.method == "grpo"]
    files, notes = write_plots(grpo_only, tmp_path / "out")
    assert [path.name for path in files.values()] == ["reward.png", "accuracy.png"]
    assert not (tmp_path / "out/cosine.png").exists()
    assert notes == [
        "weights.png: not drawn, no run logged grail/weight_mean",
        "cosine.png: not drawn, no run logged gar/cosine_mean",
    ]


def test_picks(root: Path) -> None:
    picks, notes = choose_rollouts(load_runs(root))
    assert picks["grpo"] == [] and not notes
    # wrong and weighted, one a prompt first; then unselected ones; then p2's highest and lowest cosine
    uids = [pick.rollout.uid for pick in picks["grail_gar"]]
    assert uids == ["p1_0_0", "p2_0_0", "p1_1_0", "p1_2_0", "p2_1_0", "p2_2_0", "p2_1_0"]
    assert pick_grail([]) == [] and pick_gar([]) == []
    alone = Rollout("p", "o", "1", 1, "a_0_0", cosine=0.5)
    assert pick_gar([alone]) == []


def test_verdict_is_acc_else_score() -> None:
    plain = {"prompt": "p", "output": "o", "gold": "1", "step": 1, "uid": "x_y_0_0"}
    assert Rollout(**plain, score=0.9, acc=0.0).correct is False
    assert Rollout(**plain, score=0.9).correct is True
    assert Rollout(**plain).correct is None
    assert Rollout(**plain).group == "x_y"


def test_page_holds_every_token_in_order_escaped_and_nothing_foreign(root: Path, tmp_path: Path) -> None:
    path = write_report(root, tmp_path / "out", "a <b> & c")
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.articles) == 7
    for tokens in page.articles:
        assert tokens == [clean(token) for token in TOKENS]
    assert "think" not in page.tags and "<think>" not in html
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in html and "7&lt;8" in html
    assert page.titles[0] == "<think>\nweight 0.400\nadvantage -0.2000"
    assert page.titles[5].startswith("␣␣\n")
    assert len(page.sources) == 4 and all(s.startswith("data:image/png;base64,") for s in page.sources)
    assert "prefers-color-scheme: dark" in html and "{style}" not in html
    assert "@import" not in html and "url(" not in html


def test_tokens_carry_colour_and_answer_underline() -> None:
    spans = tokens_html(
        Rollout("p", "abc", "1", 1, "u", tokens=("a", "b", "c"), weights=(0.5, 1.0, 5.0), answer_span=(1, 3))
    )
    assert spans.count("<span") == 3
    assert 'class="tok low" style="--t:1.00"' in spans
    assert 'class="tok ans" title' in spans
    assert 'class="tok high ans" style="--t:1.00"' in spans
    assert tokens_html(Rollout("p", "a<b", "1", 1, "u")) == "a&lt;b"
    assert clean("a\ud83d\x1b\x7f") == "a\ufffd\u241b\u2421"


def test_colour_scale_diverges_around_one_and_saturates() -> None:
    assert strength(1.0) == strength(None) == ("", 0.0)
    assert strength(0.5) == strength(0.0) == strength(0.1) == ("low", 1.0)
    assert strength(5.0) == strength(50.0) == ("high", 1.0)
    assert strength(0.9)[1] < strength(0.7)[1] < 1.0 and strength(1.2)[1] < strength(2.0)[1] < 1.0


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_text_keeps_its_contrast_on_every_shade(palette: dict[str, tuple[int, int, int]]) -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21.0)
    for side in ("low", "high"):
        for tenth in range(11):
            mixed = [b + (c - b) * tenth / 10 for b, c in zip(palette["bg"], palette[side], strict=True)]
            assert contrast(palette["fg"], tuple(mixed)) >= 4.5
