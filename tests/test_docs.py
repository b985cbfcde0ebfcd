"""The documents say what the code says: tables, keys, paths, messages, metrics and the example command."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from verl_grail.config import (
    AnswersConfig,
    ConfigError,
    GarConfig,
    GrailConfig,
    OarGConfig,
    SignalsConfig,
    parse_section,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SECTIONS = (GrailConfig, OarGConfig, GarConfig, AnswersConfig, SignalsConfig)
KEYS = {f"{cls.key}.{f.name}" for cls in SECTIONS for f in fields(cls)}
PREFIXES = sorted({key.rsplit(".", 1)[0] for key in KEYS})
NAMED_KEY = re.compile(rf"(?:{'|'.join(map(re.escape, PREFIXES))})\.\w+")
OURS = re.compile(r"(?<![\w./-])(?:(?:scripts|tests|docs|verl_grail|reward_fns)/[\w./-]*\w|[\w-]+\.(?:toml|md))")
VERLS = re.compile(r"(?<![\w./-])verl/[\w./-]*\w")
LINK = re.compile(r"\]\(([^)\s]+)\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)


def code_spans(text: str) -> list[str]:
    """What stands in backticks, in lines and in blocks."""
    return re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_recipes_is_up_to_date():
    assert load_script("docs_recipes").main(["--check"]) == 0, "run python scripts/docs_recipes.py"


def test_the_tables_of_the_settings_are_up_to_date(tmp_path, monkeypatch, capsys):
    script = load_script("docs_config")
    assert script.main(["--check"]) == 0, "run python scripts/docs_config.py"
    text = script.PAGE.read_text()
    stale = tmp_path / "configuration.md"
    stale.write_text(text.replace("| `sigma_w` | `0.5` |", "| `sigma_w` | `0.7` |"))
    monkeypatch.setattr(script, "PAGE", stale)
    assert script.main(["--check"]) == 1 and "stale" in capsys.readouterr().err and "`0.7`" in stale.read_text()
    assert script.main([]) == 0 and stale.read_text() == text
    stale.write_text(text.replace("<!-- settings: reward.gar -->", ""))
    with pytest.raises(ValueError, match=r"exactly one <!-- settings: reward\.gar -->"):
        script.main([])


@pages
def test_named_settings_exist(page):
    assert set(NAMED_KEY.findall(page.read_text())) - KEYS == set()


def test_every_value_assigned_to_a_setting_is_accepted():
    """``algorithm.grail.select_by=verdict`` and the like; placeholders such as ``…`` are no values, and functions
    (``file.py:name``) are run in tests/test_extending.py."""
    sections = {cls.key: cls for cls in SECTIONS}
    found = 0
    for page in PAGES:
        for key, value in re.findall(rf"({NAMED_KEY.pattern})=([\w.]+)(?![\w.:])", page.read_text()):
            section, name = key.rsplit(".", 1)
            try:
                parse_section(sections[section], {name: value})
            except ConfigError as e:
                raise AssertionError(f"{page.name}: {key}={value}") from e
            found += 1
    assert found > 10


@pages
def test_links_and_paths_exist(page):
    text = page.read_text()
    for target in LINK.findall(text):
        if not target.startswith("https://"):
            assert (page.parent / target.split("#")[0]).exists(), target
    installed = Path(importlib.util.find_spec("verl").submodule_search_locations[0]).parent
    for span in code_spans(text):
        for path in OURS.findall(span):
            assert (ROOT / path).exists(), path
        for path in VERLS.findall(span):
            assert (installed / path).exists(), path


def _raised_messages() -> dict[str, list[str]]:
    """Literal pieces of each message that the package raises, by where."""
    kinds = {"ConfigError", "RuntimeError", "ValueError", "AttributeError", "TimeoutError"}
    found = {}
    for path in sorted((ROOT / "verl_grail").rglob("*.py")):
        if "report" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            message = node.exc.args[0]
            pieces = message.values if isinstance(message, ast.JoinedStr) else [message]
            literal = [p.value.strip() for p in pieces if isinstance(p, ast.Constant)]
            if getattr(node.exc.func, "id", None) in kinds and literal:
                found[f"{path.name}:{node.lineno}"] = literal
    return found


def test_every_message_that_is_raised_has_a_row():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    # by `guarded`, which counts it as verify_error; by the locator, which then finds no answer; by a file of ours
    caught = ("the verifier's score or acc is not finite", "is no answer range of a text of", "no module at")
    missing = {}
    messages = _raised_messages()
    for where, literal in messages.items():
        telling = [p for p in literal if len(p) >= 12] or [max(literal, key=len)]
        if not any(p[:40].strip() in text or p.startswith(caught) for p in telling):
            missing[where] = telling
    assert len(messages) > 30 and missing == {}


def test_every_metric_is_defined():
    from omegaconf import OmegaConf

    from tests.plugin.rows import BYTES, encode, make_rows
    from verl_grail.plugin.alignment import align, plan_alignment
    from verl_grail.plugin.verdicts import verdict_metrics
    from verl_grail.plugin.weighting import plan_weighting, weigh_grail, weigh_oar_g

    info = {"acc": 1.0, "gar_pass": 1.0, "gar_span_start": 0, "gar_span_end": 2}
    cell = {"expert_solution": "2 + 2"}
    texts = [(r"1 + 2 is \boxed{3}", 1.0), (r"2 + 2 is \boxed{5}", 0.0)]
    rows = make_rows(
        [
            {"key": f"a_{i}_0", "text": text, "reward": reward, "info": info | {"acc": reward}, "columns": cell}
            for i, (text, reward) in enumerate(texts)
        ]
    )
    grail, oar_g, gar = (parse_section(cls, None) for cls in (GrailConfig, OarGConfig, GarConfig))
    signal, algorithm = torch.rand(rows.response_mask.shape), OmegaConf.create({})
    metrics = weigh_grail(rows, plan_weighting(rows, grail, BYTES, algorithm), grail, signal).metrics
    metrics |= weigh_oar_g(rows, plan_weighting(rows, oar_g, BYTES, algorithm), oar_g, signal).metrics
    plan = plan_alignment(rows, gar, encode, BYTES, 100)
    metrics |= align(rows, plan, gar, torch.rand(2, 3), torch.rand(len(plan.anchors), 3)).metrics
    rows.info[0]["outcome"] = "correct"
    metrics |= verdict_metrics(rows)
    assert len(metrics) > 50
    spans = set(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "methods.md").read_text()))
    for name in metrics:
        family, _, metric = name.partition("/")
        if metric.startswith("rows/"):
            assert {"rows/<outcome>", f"{family}/rows/<outcome>", metric.removeprefix("rows/")} <= spans, name
        else:
            assert metric in spans, name


def test_the_example_command_passes_the_checks(tmp_path):
    from hydra import compose, initialize_config_module
    from verl.utils.config import validate_config

    (block,) = re.findall(r"```bash\n(python -m verl\.trainer\.main_ppo.*?)```", (ROOT / "README.md").read_text(), re.S)
    python, *overrides = shlex.split(block.replace("\\\n", " "))
    assert [python, *overrides[:2]] == ["python", "-m", "verl.trainer.main_ppo"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides[2:])
    assert validate_config._verl_grail  # ours run first
    validate_config(config=config, use_reference_policy=False, use_critic=False)
