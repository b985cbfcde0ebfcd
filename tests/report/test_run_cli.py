"""``verl-grail report``: what it writes, what it refuses, and what the file holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.synthetic import write_run
from tests.report.test_run_sums import decode
from verl_grail.cli import main
from verl_grail.report.run.page import SCRIPTS, read

PICTURES = ["curves.png", "weight_histogram.png", "weight_profile.png", "cosine_distribution.png"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "made <up>", steps=3, prompts=4, samples=4, tokens=30)


class Elements(HTMLParser):
    """Text of scripts and styles, the policy, and whatever the page would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.fetched: list[str] = []
        self.policy = ""
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.fetched += [named[k] for k in ("src", "href") if k in named and not named[k].startswith("#")]
        self._inside = named.get("id") or tag if tag in ("script", "style") else ""
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"]

    def handle_data(self, data):
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data

    def handle_endtag(self, tag):
        self._inside = ""


def test_page_and_pictures(run, tmp_path, capsys):
    from PIL import Image

    assert main(["report", str(run), "--out", str(tmp_path / "a" / "page.html"), "--png", str(tmp_path / "png")]) == 0
    said = capsys.readouterr().out
    assert f"report: {tmp_path / 'a' / 'page.html'}" in said and "48 rollouts" in said and "note:" not in said
    html = (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    page = Elements(html)
    assert page.fetched == [] and "<title>Run made &lt;up&gt;</title>" in html and "$" + "payload" not in html
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none'")
    assert not re.search(
        r"@import|url\((?!#)|\bfetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write", html
    )
    assert set(page.texts["payload"]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    for name in PICTURES:
        with Image.open(tmp_path / "png" / name) as picture:
            assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1) and min(picture.size) > 500
            colours = picture.convert("RGB").getcolors(1 << 20)
            assert len(colours) > 20  # something is drawn


def test_the_same_run_gives_the_same_file(run, tmp_path):
    for name in "ab":
        assert main(["report", str(run), "--out", str(tmp_path / f"{name}.html")]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_limits_are_kept_and_said(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path / "a.html"), "--max-rollouts", "12"]) == 0
    assert "the page keeps 12 of 48 rollouts" in capsys.readouterr().out
    header, arrays = decode(Elements((tmp_path / "a.html").read_text()).texts["payload"])
    assert header["total"] == 48 and sorted(arrays["step"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert header["sums"]["each"][-1]["rollouts"] == 48  # the charts are of all
    assert main(["report", str(run), "--out", str(tmp_path / "a.html"), "--max-tokens", "300"]) == 0
    header, arrays = decode(Elements((tmp_path / "a.html").read_text()).texts["payload"])
    assert 0 < len(arrays["ids"]) <= 300
    with pytest.raises(SystemExit):
        main(["report", str(run), "--max-rollouts", "0"])
    assert "0 is not a positive number" in capsys.readouterr().err


def test_a_run_without_signals_or_dumps_says_what_is_missing(tmp_path, capsys):
    plain = tmp_path / "grpo"
    (plain / "rollouts").mkdir(parents=True)
    rows = [
        {"input": "p", "output": f"o{i}", "gts": "1", "score": i % 2, "step": 1, "uid": f"a_{i}_0"} for i in range(3)
    ]
    (plain / "rollouts" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(plain), "--png", str(tmp_path / "png")]) == 0
    said = capsys.readouterr().out
    assert "grpo: metrics.jsonl is missing" in said and said.count("not drawn, the run has nothing for it") == 4
    assert (plain / "report.html").is_file() and not list((tmp_path / "png").iterdir())
    # a folder of dumps by itself; metrics by themselves
    assert main(["report", str(plain / "rollouts"), "--out", str(tmp_path / "a.html")]) == 0
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"step": 1, "data": {"critic/rewards/mean": 0.5}}) + "\n")
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty"), "--metrics", str(log)]) == 0
    assert "no dumped rollouts" in capsys.readouterr().out


def test_wrong_folders_are_errors_with_the_mend(run, tmp_path, capsys):
    for arguments, said in (
        ([str(tmp_path / "no")], "is not a folder"),
        ([str(tmp_path)], "name them with --metrics FILE and --rollouts DIR"),
        ([str(run.parent)], "it holds several runs, pass one of them (made <up>)"),
        ([str(run), "--rollouts", str(tmp_path / "no")], "--rollouts"),
    ):
        assert main(["report", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_the_command_is_imported_without_what_it_draws_with():
    code = (
        "import sys; from verl_grail.cli import report; "
        "assert not {'matplotlib', 'numpy', 'scipy', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    # the package itself imports the other commands
    stubs = (
        "import types, sys; m = types.ModuleType('verl_grail.cli'); m.__path__ = ['verl_grail/cli']; "
        "sys.modules['verl_grail.cli'] = m; "
    )
    subprocess.run([sys.executable, "-c", stubs + code], check=True, cwd=Path(__file__).parents[2])


def test_scripts_are_small_files_that_cannot_end_their_element():
    for name in SCRIPTS:
        assert "</script" not in read(name) and read(name).count("\n") < 300
