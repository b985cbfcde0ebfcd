"""Several Ray nodes: training on two of them, a worker that is killed in the signal pass, resume, and the doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.nodes import OPEN, ray_cluster, ray_node, site_without_plugin
from verl_grail.cpu.overrides import cpu_env

ENV = "+ray_kwargs.ray_init.runtime_env.env_vars"
BOTH = ["algorithm.adv_estimator=grail", "reward.reward_manager.name=gar", "+algorithm.grail.rollouts=all"]
SAME_NAMES = ["trainer.project_name=nodes", "trainer.experiment_name=nodes"]


@pytest.fixture(scope="module")
def two_nodes():
    with ray_cluster("127.0.0.2", "127.0.0.3") as address:
        yield address


def test_a_worker_killed_in_the_pass_and_resume_on_two_nodes(verl, two_nodes, tmp_path):
    """One run on one node, and its replay on two, broken off in the second step and resumed: all numbers agree."""
    cache, where, folder = tmp_path / "cache", tmp_path / "where", tmp_path / "two"
    for f in (where, folder):
        f.mkdir()
    skip = [f"skip.rollout_tq.{k}" for k in ("enable=True", f"dump_dir={cache}", "steps=[1,2]")]
    one = verl("one", [*BOTH, *SAME_NAMES, *skip], n_ranks=2)

    spread = [*BOTH, *SAME_NAMES, *skip, "trainer.nnodes=2", "trainer.n_gpus_per_node=1", "trainer.save_freq=1"]
    hooks = ["actor_rollout_ref.model.external_lib=tests.e2e.rank_hooks", f"{ENV}.PYTHONPATH={ROOT}"]
    # a pass over the rollouts and one over the expert solutions in the first step
    kill = [*hooks, f"{ENV}.HOOK_WHERE={where}", f"{ENV}.HOOK_KILL='3'"]
    options = dict(address=two_nodes, folder=folder, env=OPEN)
    killed = verl("two", [*spread, *kill], ok=False, **options)
    assert "the signal pass over 32 rollouts failed on the actor workers" in killed.log
    assert "trainer.resume_mode=auto" in killed.log
    assert sorted(killed.metrics) == [1]

    ranks = [json.loads((where / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert {r["ip"] for r in ranks} == {"127.0.0.2", "127.0.0.3"}
    shared = set.intersection(*[{tuple(p) for p in r["prompts"]} for r in ranks])
    assert shared  # groups whose rollouts sit on both nodes
    assert killed.metrics[1]["gar/bonus_mean"] > 0
    assert_same_signals(one, killed, 1)
    bonus = [sorted((r["input"], r["output"], r["gar_bonus"] or 0.0) for r in run.rollouts(1)) for run in (one, killed)]
    assert [b[:2] for b in bonus[0]] == [b[:2] for b in bonus[1]] and max(b[2] for b in bonus[0]) > 0
    assert [b[2] for b in bonus[0]] == pytest.approx([b[2] for b in bonus[1]], abs=1e-5)

    resumed = verl("two", [*spread, "trainer.resume_mode=auto"], **options)
    assert sorted(resumed.metrics) == [2]
    assert_same_signals(one, resumed, 2)


def assert_same_signals(a, b, step):
    """Our metrics, and those of the update that they led to."""
    a, b = a.metrics[step], b.metrics[step]
    compared = [k for k in a if k.startswith(("grail/", "gar/", "actor/", "critic/"))]
    assert len([k for k in compared if k.startswith(("grail/", "gar/"))]) > 20 and len(compared) > 40
    for key in compared:
        if "/perf/" not in key:
            assert b[key] == pytest.approx(a[key], abs=2e-5, rel=2e-5), key


def doctor(address: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "verl_grail.cli", "doctor", "--ray", address, "--json"]
    env = {**os.environ, **cpu_env(), **OPEN}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, json.loads(done.stdout)


def test_doctor_reports_every_node_and_role(two_nodes):
    code, said = doctor(two_nodes)
    assert code == 0 and said["ok"] and not said["findings"]
    roles = [(r["ip"], r["role"]) for r in said["reports"][1:]]
    assert roles == [
        ("127.0.0.2", "driver"),
        ("127.0.0.2", "actor"),
        ("127.0.0.2", "reward"),
        ("127.0.0.3", "actor"),
        ("127.0.0.3", "reward"),
    ]
    for report in said["reports"]:
        assert all(all(names.values()) for names in report["registered"].values())


def test_doctor_finds_nodes_without_the_plugin_or_with_another_version(two_nodes, tmp_path):
    without, older = site_without_plugin(tmp_path / "without"), site_without_plugin(tmp_path / "older", "0.0.9")
    with ray_node(two_nodes, "127.0.0.4", without), ray_node(two_nodes, "127.0.0.5", older):
        code, said = doctor(two_nodes)
    assert code == 1 and not said["ok"]
    found = [(f["where"].split()[2], f["where"].split()[0], f["what"], f["mend"]) for f in said["findings"]]
    assert [f[:2] for f in found] == [(ip, role) for ip in ("127.0.0.4", "127.0.0.5") for role in ("actor", "reward")]
    assert all("verl-grail is not installed" in f[2] for f in found[:2])
    assert all("verl-grail 0.0.9, but" in f[2] for f in found[2:])
    assert all("pip install verl-grail" in f[3] for f in found)
