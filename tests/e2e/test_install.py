"""The wheel, outside of the repository: everything registers in every process; a stock mode fails at start-up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from verl_grail.cpu.overrides import cpu_env


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory) -> Path:
    """Python of a new environment that holds the wheel and, by a path file, this environment's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("verl_grail-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([str(python), "-c", code], text=True).strip())
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    # only path entries of this environment's packages; its editable install of the project must not be found
    here = sysconfig_purelibs()
    (site / "others.pth").write_text("\n".join(here))
    return python


def sysconfig_purelibs() -> list[str]:
    """Directories of this environment's packages."""
    return [p for p in sys.path if p.endswith("site-packages") and Path(p).is_dir()]


def _run(python, code: str, cwd, **env) -> str:
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(code)],
        cwd=cwd, env={**os.environ, **cpu_env(), **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_registered_in_driver_and_ray_workers(wheel_python, tmp_path):
    code = """
        import ray, verl_grail
        assert "site-packages" in verl_grail.__file__, verl_grail.__file__

        def registered():
            import verl
            from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
            from verl.trainer.ppo.core_algos import get_adv_estimator_fn
            from verl.trainer.ppo.v1 import get_trainer_cls
            names = [get_adv_estimator_fn(n).__name__ for n in ("grail", "oar_g")]
            names += [get_reward_manager_cls("gar").__name__]
            modes = ("sync", "colocate_async", "separate_async")
            return names + [get_trainer_cls(f"grail_{m}").__name__ for m in modes]

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        for names in (registered(), ray.get(ray.remote(registered).remote())):
            print(names)
            assert names == ["grail", "oar_g", "GarRewardManager", "GrailPPOTrainerSync",
                             "GrailPPOTrainerColocateAsync", "GrailPPOTrainerSeparateAsync"]
        ray.shutdown()
    """
    _run(wheel_python, code, tmp_path)


def test_importing_verl_imports_nothing_of_ours_that_is_heavy(wheel_python, tmp_path):
    code = """
        import sys, verl
        ours = sorted(m for m in sys.modules if m.startswith("verl_grail"))
        light = {"verl_grail", "verl_grail.cpu", "verl_grail.plugin", "verl_grail.plugin.startup", "verl_grail.config"}
        assert {m for m in ours if not m.startswith("verl_grail.config.")} <= light, ours
        assert "verl.trainer.ppo.v1" not in sys.modules and "verl.experimental.reward_loop" not in sys.modules
    """
    _run(wheel_python, code, tmp_path, VERL_PLATFORM="")


def test_methods_are_found_by_verls_own_entry_point(wheel_python, tmp_path):
    command = ["-m", "verl.trainer.main_ppo", "+method=grail", "algorithm.grail.leaf=middle", "--cfg", "job"]
    done = subprocess.run(
        [str(wheel_python), *command], cwd=tmp_path, env={**os.environ, **cpu_env()},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(line in done.stdout for line in ("adv_estimator: grail", "leaf: middle", "trainer_mode: grail_sync"))


def test_doctor_here(wheel_python, tmp_path):
    done = subprocess.run(
        [str(wheel_python), "-m", "verl_grail.cli", "doctor"], cwd=tmp_path, env={**os.environ, **cpu_env()},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "grail_separate_async" in done.stdout and "wrong" not in done.stdout, done
    off = subprocess.run(
        [str(wheel_python), "-m", "verl_grail.cli", "doctor"], cwd=tmp_path,
        env={**os.environ, "VERL_PLATFORM": "", "VERL_USE_EXTERNAL_PLUGINS": "none"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert off.returncode == 1 and "VERL_USE_EXTERNAL_PLUGINS" in off.stdout


def test_the_report_has_its_page_with_it(wheel_python, tmp_path):
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "1.jsonl").write_text('{"input": "p", "output": "o", "score": 1.0, "uid": "a_0_0"}\n')
    done = subprocess.run(
        [str(wheel_python), "-m", "verl_grail.cli", "report", str(tmp_path)], cwd=tmp_path,
        env={**os.environ, **cpu_env()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "class Chart" in (tmp_path / "report.html").read_text()


def test_a_stock_mode_fails_before_anything_is_started(wheel_python, tmp_path):
    done = subprocess.run(
        [str(wheel_python), "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grail",
         "actor_rollout_ref.actor.strategy=fsdp2", "trainer.device=cpu", "hydra.run.dir=."],
        cwd=tmp_path, env={**os.environ, **cpu_env()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert done.returncode != 0 and "set trainer.v1.trainer_mode=grail_sync" in log and "ray init kwargs" not in log
