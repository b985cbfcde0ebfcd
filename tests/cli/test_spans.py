"""``verl-grail spans``: what it prints, and what it says to wrong input."""

from __future__ import annotations

import io
import json

import pytest

from tests.core.tokenizers_for_tests import byte_level
from verl_grail.cli import main
from verl_grail.cli.spans import regions
from verl_grail.core.spans import AnswerSpan

TEXT = "日本 so it is \\boxed{5}. Then"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level().save_pretrained(folder)
    return folder


def write(tmp_path, text, name="response.txt"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def table_of(printed: str) -> dict[str, str]:
    """Region by token text, from the printed table."""
    rows = [line.split() for line in printed.splitlines() if "answer tokens" not in line]
    return {r[-2]: r[-1] for r in rows if len(r) > 2 and r[-1] in ("reasoning", "delimiter", "content", "post")}


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_text(given, tokenizer, tmp_path, capsys):
    where = tokenizer if given == "folder" else tokenizer / "tokenizer.json"
    assert main(["spans", write(tmp_path, TEXT), "--tokenizer", str(where)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(TEXT)
    kinds = table_of(out)
    assert "content" in kinds.values() and "delimiter" in kinds.values() and "post" in kinds.values()
    assert any("5" in token and kind == "content" for token, kind in kinds.items())
    assert "answer tokens [" in out and "content ['" in out


def test_ids_and_stdin(tokenizer, tmp_path, capsys, monkeypatch):
    ids = byte_level().encode(TEXT, add_special_tokens=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(ids)))
    assert main(["spans", "-", "--tokenizer", str(tokenizer)]) == 0
    assert capsys.readouterr().out.startswith(TEXT)


def test_dumped_rollouts_need_no_tokenizer(tmp_path, capsys):
    rows = [{"tokens": ["no ", "answer"]}, {"tokens": ["so ", "\\boxed{", "4", "2", "}.", "\n"]}]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "3.jsonl")
    assert main(["spans", path]) == 1
    assert "no answer in 2 tokens" in capsys.readouterr().out
    assert main(["spans", path, "--row", "1"]) == 0
    out = capsys.readouterr().out
    assert table_of(out) == {
        "so": "reasoning", "\\boxed{": "delimiter", "4": "content", "2": "content", "}.": "delimiter", "\\n": "post",
    }  # fmt: skip
    assert "answer tokens [1, 5), content ['42']; 1 reasoning, 2 delimiter, 2 content, 1 post" in out


def test_policies(tmp_path, capsys):
    path = write(tmp_path, json.dumps({"tokens": ["\\boxed{", "3", "}, ", "\\boxed{", "5", "}"]}), "1.jsonl")
    for options, content in (
        ([], "['5']"),
        (["--which", "first"], "['3']"),
        (["--several", "set"], "['3', '5']"),
        (["--locator", "regex", "--pattern", r"box(ed)"], "['\\\\boxed{']"),
    ):
        assert main(["spans", path, *options]) == 0
        assert f"content {content}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere.txt"], "cannot be read"),
        (["text.txt"], "needs --tokenizer"),
        (["text.txt", "--tokenizer", "/nowhere"], "--tokenizer /nowhere cannot be loaded"),
        (["rows.jsonl", "--row", "5"], "--row 5: there are 1 rollouts"),
        (["bad.jsonl"], "row 0 is no rollout"),
        (["rows.jsonl", "--locator", "regex"], "pattern goes with locator=regex"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, TEXT, "text.txt")
    write(tmp_path, '{"tokens": ["x"]}', "rows.jsonl")
    write(tmp_path, "{}", "bad.jsonl")
    assert main(["spans", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_regions_of_several_boxes():
    span = AnswerSpan(1, 6, ((2, 3), (4, 5)))
    assert "".join(r[0] for r in regions(span, 7)) == "rdcdcdp"
    assert regions(None, 2) == ["reasoning"] * 2
