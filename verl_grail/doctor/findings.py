"""From reports to findings: what is wrong, where, and what mends it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

SAME = ("verl-grail", "verl", "torch", "transformers", "ray", "TransferQueue", "tensordict", "vllm")
"""Distributions that have to have one version in all processes of a run."""
ALIKE = ("megatron-core", "mbridge", "flash-attn", "transformer-engine")
"""Those that some runs need, and then on all nodes alike."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        where: node and role, or the whole cluster.
        what: what was found.
        mend: what to do about it.
        fatal: a run would fail or be wrong; else worth knowing.
    """

    where: str
    what: str
    mend: str
    fatal: bool = True


def place(report: dict[str, Any]) -> str:
    """Node and role of a report."""
    host = report.get("host", "?")
    return f"{report['role']} on {report['ip']}" + (f" ({host})" if host not in ("?", report["ip"]) else "")


def judge(reports: list[dict[str, Any]], requirements: Iterable[str] = ()) -> list[Finding]:
    """Findings of all reports; the first report, of the process that asks, is what the others are held against.

    Args:
        requirements: of the installed distribution (importlib.metadata.requires); its extras are left out.
    """
    needed = {r.name: r for r in map(Requirement, requirements) if r.marker is None}
    findings: list[Finding] = []
    for report in reports:
        found = _own(report, needed)
        findings += found
        if not any(f.fatal for f in found):
            findings += _against(report, reports[0])
    return _once(findings)


def _own(report: dict[str, Any], needed: dict[str, Requirement]) -> list[Finding]:
    where, versions = place(report), report.get("versions")
    if versions is None:
        return [Finding(where, what, "look at the node: ray status, ray logs") for _, what in report["errors"]]
    if versions["verl-grail"] is None:
        return [Finding(where, "verl-grail is not installed", "pip install verl-grail on this node")]
    findings = [
        Finding(where, f"{name} {versions[name]} is installed, {requirement} is needed", f"pip install '{requirement}'")
        for name, requirement in needed.items()
        if name in versions and not _satisfies(versions[name], requirement)
    ]
    findings += [Finding(where, f"{what}: {why}", "mend what the message names") for what, why in report["errors"]]
    missing = [
        f"{kind[:-1]} {n}" for kind, names in report["registered"].items() for n, there in names.items() if not there
    ]
    if missing and not findings:
        findings.append(
            Finding(
                where,
                f"not registered with verl: {', '.join(missing)}",
                "set VERL_USE_EXTERNAL_PLUGINS to auto, or to a list with verl_grail in it, on this node",
            )
        )
    if report["role"] == "actor" and not findings:
        findings += _device(report, where) + _kernels(report, where)
    return findings


def _kernels(report: dict[str, Any], where: str) -> list[Finding]:
    """Compiled code that does not load; without the device it was built for it may well not."""
    return [
        Finding(
            where,
            f"the kernels of {name} {report['versions'][name]} do not load: {why}",
            f"install a {name} built for torch {report['versions']['torch']} and this device, or none",
            fatal=bool(report["devices"]),
        )
        for name, why in report["kernels"].items()
        if why is not None
    ]


def _device(report: dict[str, Any], where: str) -> list[Finding]:
    """An actor needs an engine for its device, and the device; Ray may know of GPUs that torch does not see."""
    if not report["engines"]:
        return [Finding(where, f"verl has no engine for device {report['device']}", "install a torch for that device")]
    if report["devices"]:
        return []
    expected = report.get("gpus", 0) >= 1
    what = f"torch {report['versions']['torch']} sees no device of kind {report['device']}"
    mend = "install a torch and a driver that fit, or set VERL_PLATFORM" if expected else "none, if it has no GPU"
    return [Finding(where, what, mend, fatal=expected)]


def _satisfies(version: str | None, requirement: Requirement) -> bool:
    return version is not None and requirement.specifier.contains(Version(version), prereleases=True)


def _against(report: dict[str, Any], first: dict[str, Any]) -> list[Finding]:
    if report is first or "versions" not in first:
        return []
    findings, where = [], place(report)
    for name in (*SAME, *ALIKE):
        here, there = report["versions"][name], first["versions"][name]
        if here != there:
            mend = f"pip install {name}=={there} on this node" if there else f"pip uninstall {name} on this node"
            what = f"{name} {here or 'is missing'}, but {there or 'none'} in the {place(first)}"
            findings.append(Finding(where, what, mend, fatal=name in SAME))
    if report["python"].split(".")[:2] != first["python"].split(".")[:2]:
        findings.append(
            Finding(where, f"Python {report['python']}, but {first['python']} in the {place(first)}", "use one of them")
        )
    if report["role"] != "actor" and report["platform"] != first["platform"]:
        # an actor's GPU may be the only one that is visible
        findings.append(
            Finding(
                where,
                f"verl's platform is {report['platform']}, but {first['platform']} in the {place(first)}",
                "set the same VERL_PLATFORM (or none) before ray start and for the driver",
                fatal=False,
            )
        )
    return findings


def _once(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
