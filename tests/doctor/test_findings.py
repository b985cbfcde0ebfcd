"""Judgements of the doctor, on reports as `probe` writes them."""

from __future__ import annotations

import copy
import sys

import pytest

from verl_grail.doctor.findings import judge
from verl_grail.doctor.probe import KERNELS, PACKAGES, _kernels, probe

NEEDS = ["verl>=0.9.1,<0.10", "TransferQueue>=0.1.10", "megatron-core>=0.16; extra == 'megatron'"]


def report(role="driver", ip="10.0.0.1", **changes):
    versions = dict.fromkeys(PACKAGES, "1.0") | {"verl": "0.9.1", "verl-grail": "0.1.0", "megatron-core": "0.1"}
    base = {
        "host": "a",
        "ip": ip,
        "role": role,
        "python": "3.11.7",
        "versions": versions,
        "registered": {"advantage estimators": {"grail": True}},
        "platform": "PlatformCUDA",
        "device": "cuda",
        "devices": 1,
        "engines": ["fsdp"],
        "kernels": {"flash-attn": None} if role == "actor" else {},
        "errors": [],
    }
    return copy.deepcopy(base) | changes


def with_version(name, version, **kwargs):
    r = report(**kwargs)
    r["versions"][name] = version
    return r


def test_nothing_is_found_where_all_is_well():
    assert judge([report(), report("actor"), report("actor", "10.0.0.2"), report("reward", "10.0.0.2")], NEEDS) == []


@pytest.mark.parametrize(
    ("other", "what", "mend"),
    [
        (with_version("verl-grail", None), "not installed", "pip install verl-grail"),
        (with_version("verl-grail", "0.2.0"), "verl-grail 0.2.0, but 0.1.0", "pip install verl-grail==0.1.0"),
        (with_version("verl", "0.8.0"), "verl 0.8.0 is installed, verl<0.10,>=0.9.1 is needed", "pip install 'verl"),
        (with_version("torch", "2.0"), "torch 2.0, but 1.0", "pip install torch==1.0"),
        (with_version("vllm", None), "vllm is missing, but 1.0", "pip install vllm==1.0"),
        (report(python="3.10.1"), "Python 3.10.1, but 3.11.7", "use one"),
        (report(registered={"reward managers": {"gar": False}}), "reward manager gar", "VERL_USE_EXTERNAL_PLUGINS"),
        (report(errors=[("import verl", "ImportError: x")]), "import verl: ImportError: x", "mend"),
        (report("actor", engines=[]), "no engine for device cuda", "torch"),
        (
            report("actor", kernels={"flash-attn": "ImportError: x"}),
            "flash-attn 1.0 do not load: ImportError: x",
            "torch 1.0",
        ),
        (report("actor", devices=0, gpus=8.0), "torch 1.0 sees no device of kind cuda", "driver"),
        (
            {"host": "?", "ip": "10.0.0.2", "role": "actor", "errors": [("probe", "no answer")]},
            "no answer",
            "ray status",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_wrong_comes_with_its_mend(other, what, mend):
    (found,) = judge([report(), other | {"ip": "10.0.0.2"}], NEEDS)
    assert found.fatal and what in found.what and mend in found.mend and "10.0.0.2" in found.where


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (report("reward", platform="PlatformCPU"), "platform is PlatformCPU"),
        (report("actor", devices=0), "sees no device"),  # a node that Ray knows no GPU of, or this process
        (with_version("mbridge", None, role="actor"), "mbridge is missing, but 1.0"),
        (with_version("flash-attn", "2.0", role="actor"), "flash-attn 2.0, but 1.0"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_only_some_runs_need_is_worth_a_note(other, what):
    (found,) = judge([report(), other], NEEDS)
    assert not found.fatal and what in found.what


def test_this_process_passes():
    for role in ("driver", "actor", "reward"):
        facts = probe(role)
        assert not facts["errors"] and facts["versions"]["verl-grail"]
        assert all(all(names.values()) for names in facts["registered"].values())


def test_what_one_process_says_twice_is_the_same():
    """The CPU platform answers for vLLM's version once verl is imported."""
    from verl_grail.doctor.cluster import NODE_ROLES

    assert judge([probe(role) for role in ("driver", *NODE_ROLES)], NEEDS) == []


def test_kernels_that_do_not_load_are_a_note_where_there_is_no_device():
    found = judge([report(), report("actor", "10.0.0.2", devices=0, kernels={"vllm": "AttributeError: x"})], NEEDS)
    assert [f.fatal for f in found] == [False, False] and "vllm 1.0 do not load" in found[1].what


def test_the_kernels_of_this_environment(monkeypatch):
    """vLLM's load here. A wheel for another torch installs and fails at its first use: the probe says how."""
    versions = dict.fromkeys(PACKAGES) | {"vllm": "0.28.0", "flash-attn": "2.8"}
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    kernels = _kernels(versions)
    assert sorted(kernels) == ["flash-attn", "vllm"] and kernels["vllm"] is None
    assert kernels["flash-attn"].startswith("ModuleNotFoundError")
    monkeypatch.setitem(KERNELS, "vllm", ("vllm._custom_ops", "no_such_kernel"))
    assert "no_such_kernel" in _kernels(versions)["vllm"]


def test_a_probe_survives_what_imports_do(monkeypatch):
    import importlib

    def broken(name, *args):
        raise SystemExit("no")

    monkeypatch.setattr(importlib, "import_module", broken)
    facts = probe("reward")
    assert facts["registered"] == {"reward managers": {"gar": False}}
    assert ("import verl", "SystemExit: no") in facts["errors"]
