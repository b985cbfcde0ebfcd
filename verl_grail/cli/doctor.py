"""``verl-grail doctor``: versions and registrations of this process, or of every node and role of a Ray cluster."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Any

from verl_grail.doctor import cluster, findings, probe


def run(args: argparse.Namespace) -> int:
    """Print; 1 if something would keep a run from working, 2 if there is no such cluster."""
    roles = ("driver",) if args.ray else ("driver", *cluster.NODE_ROLES)
    reports = [probe.probe(role) for role in roles]
    if args.ray:
        try:
            reports += cluster.probe_cluster(args.ray, args.seconds)
        except ConnectionError as e:
            print(f"no Ray cluster at {e}\nstart one (ray start --head), or name its address", file=sys.stderr)
            return 2
    found = findings.judge(reports, metadata.requires("verl-grail") or ())
    fatal = any(f.fatal for f in found)
    if args.json:
        print(json.dumps({"ok": not fatal, "reports": reports, "findings": [asdict(f) for f in found]}, indent=1))
    else:
        _print(reports, found, fatal)
    return int(fatal)


def _print(reports: list[dict[str, Any]], found: list[findings.Finding], fatal: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    columns = ("where", "verl-grail", "verl", "torch", "Python", "platform", "engines", "kernels", "registered")
    table = Table(*columns, box=None)
    for report in reports:
        versions = report.get("versions")
        if versions is None:
            table.add_row(findings.place(report), *["?"] * (len(columns) - 1))
            continue
        names = [n for names in report["registered"].values() for n, there in names.items() if there]
        table.add_row(
            findings.place(report),
            *[versions[n] or "-" for n in ("verl-grail", "verl", "torch")],
            report["python"],
            f"{report['platform']} ({report['device']})",
            ", ".join(report["engines"]) or "-",
            ", ".join(n for n, why in report["kernels"].items() if why is None) or "-",
            ", ".join(names) or "none",
        )
    console.print(table)
    others = {n: v for n, v in reports[0]["versions"].items() if v and n not in ("verl-grail", "verl", "torch")}
    console.print("here: " + ", ".join(f"{n} {v}" for n, v in others.items()), highlight=False)
    for finding in found:
        mark = "[bold red]wrong[/]" if finding.fatal else "[yellow]note[/]"
        console.print(f"{mark}  {finding.where}: ", end="")
        console.print(finding.what, markup=False, highlight=False)
        console.print("       mend: ", end="")
        console.print(finding.mend, markup=False, highlight=False)
    console.print(
        "[bold red]A run would not work like this.[/]" if fatal else "[bold green]Everything is in its place.[/]"
    )


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser("doctor", help="versions and registrations, here or on every node of a Ray cluster")
    parser.add_argument("--ray", metavar="ADDRESS", help="of a running cluster, such as 10.0.0.1:6379, or auto")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long to wait for the nodes (180)")
    parser.add_argument("--json", action="store_true", help="reports and findings as JSON")
    parser.set_defaults(run=run)
