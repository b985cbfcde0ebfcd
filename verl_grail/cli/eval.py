"""``verl-grail eval MODEL --suite grail|gar|FILE...``: sample a model on benchmarks, grade, and report.

MODEL is a folder or name for vLLM in this process; with --server, the name under which an OpenAI-compatible server
offers it. Stopped or failed, the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_grail.evaluation.problems import Benchmark
    from verl_grail.evaluation.protocol import Protocol
    from verl_grail.evaluation.store import Store
    from verl_grail.evaluation.summary import ProblemLine

PRESETS = ("grail", "gar")
_SHAPING = ("dtype", "quantization", "max_model_len", "hf_overrides", "revision", "tokenizer")
"""vLLM's options that change what is sampled; with others, such as the number of GPUs, a run may be gone on with."""
_EDGE = 1 << 16


def run(args: argparse.Namespace) -> int:
    """Print; 1 if some requests failed for good, 2 if the evaluation cannot be done."""
    from verl_grail.evaluation import EvaluationError

    try:
        return _run(args)
    except (EvaluationError, ValueError) as e:  # ValueError: settings of the grader
        print(f"verl-grail eval: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it stopped", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    from verl_grail.evaluation.run import evaluate
    from verl_grail.evaluation.store import Store
    from verl_grail.grading.options import make_grader

    protocol = protocol_of(args)
    benchmarks = load(args, protocol)
    grading = _pairs(args.grader, "--grader")
    grader = make_grader(grading)
    template = _template(args.chat_template)
    settings = settings_of(args, protocol, grading, template)
    folder = args.out or Path("eval") / f"{Path(args.model).name}_{protocol.name}"
    labels = {"method": args.method or "", "base": args.base or "", "model": args.model}
    store = Store(folder, settings, {b.name: b.digest for b in benchmarks}, labels)
    try:
        with _progress(benchmarks, protocol) as watch:
            samples = evaluate(
                benchmarks,
                protocol.sampling,
                args.seed,
                lambda: engine_of(args, protocol, template),
                grader,
                store,
                watch,
            )
        return _report(store, benchmarks, samples, protocol, grader)
    finally:
        store.close()


# ------------------------------ from arguments ------------------------------


def protocol_of(args: argparse.Namespace) -> Protocol:
    """The preset, or the one for files, with what the command line changes."""
    from verl_grail.evaluation import EvaluationError
    from verl_grail.evaluation.protocol import FILES, PROTOCOLS

    presets = [s for s in args.suite if s in PRESETS]
    if presets and len(args.suite) > 1:
        raise EvaluationError(f"--suite {presets[0]} stands alone: other files are another evaluation")
    chosen = PROTOCOLS[presets[0]] if presets else FILES
    own = {} if args.no_template_args else chosen.template
    template = {**own, **_pairs(args.template_arg, "--template-arg")}
    sampling = ("samples", "runs", "temperature", "top_p", "top_k", "max_tokens", "instruction")
    pass_at = tuple(args.pass_at) if args.pass_at else None
    return chosen.changed(template=template, pass_at=pass_at, **{n: getattr(args, n) for n in sampling})


def load(args: argparse.Namespace, protocol: Protocol) -> list[Benchmark]:
    """The benchmarks of the suite."""
    from verl_grail.evaluation import EvaluationError
    from verl_grail.evaluation.problems import load_benchmark, suite_files

    if args.limit < 0:
        raise EvaluationError(f"--limit {args.limit} must be 0 (all problems) or more")
    if protocol.name in PRESETS:
        files = suite_files(protocol, args.data, args.benchmarks)
    else:
        if args.benchmarks:
            raise EvaluationError("--benchmarks chooses from a preset: leave it out, and name the files alone")
        files = {Path(f).stem: (Path(f), 0) for f in args.suite}
        if len(files) < len(args.suite):
            raise EvaluationError("--suite: two files have one name, which names the benchmark: rename one of them")
    found = []
    for name, (path, limit) in files.items():
        most = min(limit or args.limit, args.limit) if args.limit else limit
        found.append(load_benchmark(name, path, most, protocol.instruction))
    return found


def settings_of(
    args: argparse.Namespace, protocol: Protocol, grading: dict[str, Any], template: str | None
) -> dict[str, Any]:
    """What shapes the responses and their grades: a run is gone on with under the same ones only."""
    from dataclasses import asdict

    options = {k: v for k, v in _pairs(args.engine_arg, "--engine-arg").items() if k in _SHAPING}
    return {
        "format": 1,
        "suite": protocol.name,
        "model": args.model,
        "weights": None if args.server else weights(Path(args.model)),
        "engine": "server" if args.server else "vllm",
        "engine_args": options,
        "standard_fields": args.standard_fields,
        "sampling": asdict(protocol.sampling),
        "seed": args.seed,
        "instruction": protocol.instruction,
        "template": protocol.template,
        "chat_template": None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16],
        "grader": {k: v for k, v in grading.items() if k != "workers"},
    }


def weights(folder: Path) -> str | None:
    """A digest of a model's folder by names, sizes, configuration and the ends of each weight file; None of a name.

    A checkpoint that was trained further under the same path is another model.
    """
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".json", ".jinja", ".gguf")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE))
            if size > _EDGE:
                file.seek(max(_EDGE, size - _EDGE))
                digest.update(file.read(_EDGE))
    return digest.hexdigest()[:16]


def engine_of(args: argparse.Namespace, protocol: Protocol, template: str | None):
    """The server, or vLLM in this process."""
    from verl_grail.evaluation import EvaluationError
    from verl_grail.evaluation.engines import Server, Vllm

    options = _pairs(args.engine_arg, "--engine-arg")
    if args.server:
        if options or template:
            raise EvaluationError("--engine-arg and --chat-template go to vLLM in this process: set them on the server")
        return Server(
            args.server,
            args.model,
            os.environ.get("OPENAI_API_KEY", "EMPTY"),
            args.concurrency,
            args.retries,
            args.timeout,
            protocol.template,
            args.standard_fields,
        )
    if args.standard_fields:
        raise EvaluationError("--standard-fields goes with --server")
    return Vllm(args.model, protocol.template, template, {**_cpu_options(), "seed": args.seed, **options})


def _cpu_options() -> dict[str, Any]:
    """Options of a small CPU machine, under VERL_PLATFORM=cpu; else none."""
    from verl_grail import cpu

    if not cpu.install():
        return {}
    from verl_grail.cpu.overrides import cpu_env

    for name, value in cpu_env().items():
        if name.startswith(("VLLM", "TORCH")):
            os.environ.setdefault(name, value)
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "kv_cache_memory_bytes": 1 << 29,
    }


def _template(path: str | None) -> str | None:
    from verl_grail.evaluation import EvaluationError

    try:
        return Path(path).read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as e:
        raise EvaluationError(f"--chat-template {path} cannot be read: {e}") from e


def _pairs(values: list[str], option: str) -> dict[str, Any]:
    import yaml

    from verl_grail.evaluation import EvaluationError

    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise EvaluationError(f"{option} {text} is not KEY=VALUE")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise EvaluationError(f"{option} {text}: the value cannot be read: {e}") from e
    return found


# ------------------------------ what is printed ------------------------------


@contextlib.contextmanager
def _progress(benchmarks: list[Benchmark], protocol: Protocol) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    sampling = protocol.sampling
    for benchmark in benchmarks:
        if benchmark.as_is:
            console.print(
                f"note: {benchmark.as_is} prompts of {benchmark.name} keep their instruction: their rows lack "
                "extra_info.problem",
                markup=False,
            )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[state]}"), console=console) as progress:
        tasks = {
            b.name: progress.add_task(b.name, total=len(b.problems) * sampling.samples * sampling.runs, state="")
            for b in benchmarks
        }

        def watch(name: str, _sample: Any, tally: Any) -> None:
            done, failed = tally.done[name], tally.failed[name]
            state = f"{100 * tally.correct[name] / max(done, 1):.1f} % right" + (f", {failed} failed" if failed else "")
            progress.update(tasks[name], completed=done, state=state)

        yield watch


def _report(
    store: Store, benchmarks: list[Benchmark], samples: dict[str, dict], protocol: Protocol, grader: Any
) -> int:
    """Summarise every benchmark that is complete, those of earlier commands too; 1 if requests of this one failed."""
    from verl_grail.evaluation import summary as s
    from verl_grail.evaluation import tables
    from verl_grail.evaluation.store import SUMMARY, write_json, write_lines

    folder, names = store.folder, s.metric_names(protocol)
    for benchmark in benchmarks:
        found = s.problem_lines(benchmark.problems, samples[benchmark.name], protocol.sampling.runs, grader)
        write_lines(store.lines(benchmark.name), s.as_records(found))
    lines = {name: s.read_lines(store.lines(name)) for name in store.complete()}
    every = {name: samples[name] if name in samples else store.load(name) for name in lines}
    summary: dict[str, Any] = {
        "metrics": names,
        "benchmarks": {
            name: s.summarise(found, _wanted(every[name].values(), found), names) for name, found in lines.items()
        },
        "average": s.average(lines, names),
    }
    write_json(folder / SUMMARY, summary)
    text = tables.markdown(*tables.summary_table(summary))
    notes = [*tables.summary_notes(summary), *(f"not published: {what}" for what in protocol.unpublished)]
    text += "".join(f"\n\n- {n}" if i == 0 else f"\n- {n}" for i, n in enumerate(notes))
    (folder / "summary.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"\n{folder}: run.json, samples, problems, {SUMMARY}, summary.md")
    failed = sum(summary["benchmarks"][b.name]["failed"] for b in benchmarks)
    if failed:
        errors = sorted({s.error for of in samples.values() for s in of.values() if s.error})
        print(f"{failed} requests failed: start the same command to try them again", file=sys.stderr)
        print("\n".join(f"  {error}" for error in errors[:5]), file=sys.stderr)
    return int(bool(failed))


def _wanted(samples: Any, lines: Sequence[ProblemLine]) -> list[Any]:
    ids = {line.id for line in lines}
    return [s for s in samples if s.id in ids]


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "eval",
        help="sample a model on benchmarks by a paper's protocol, grade, and report with intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--suite", nargs="+", required=True, metavar="SUITE", help="grail, gar, or parquet files")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the suite's files (data)")
    parser.add_argument("--benchmarks", nargs="+", default=[], help="of the suite; all by default")
    parser.add_argument("--limit", type=int, default=0, help="problems of each benchmark at most")
    parser.add_argument("--out", type=Path, help="folder of the run (eval/MODEL_SUITE)")
    parser.add_argument("--method", help="what verl-grail compare calls this run (the folder's name)")
    parser.add_argument("--base", help="the model that was trained: compare pairs methods on the same base")
    change = parser.add_argument_group("changes to the protocol")
    change.add_argument("--samples", type=int, help="of a problem, in each run")
    change.add_argument("--runs", type=int)
    change.add_argument("--temperature", type=float)
    change.add_argument("--top-p", type=float)
    change.add_argument("--top-k", type=int, help="-1: no limit")
    change.add_argument("--max-tokens", type=int)
    change.add_argument("--pass-at", type=int, nargs="+", metavar="K", help="the k of pass@k")
    change.add_argument("--instruction", help="boxed, think, a text, or '' for the file's own prompts")
    change.add_argument("--seed", type=int, default=0)
    change.add_argument(
        "--grader", action="append", default=[], metavar="KEY=VALUE", help="setting of the grader, see docs/rewards.md"
    )
    change.add_argument(
        "--template-arg", action="append", default=[], metavar="KEY=VALUE", help="for the chat template; repeatable"
    )
    change.add_argument("--no-template-args", action="store_true", help="without those of the suite")
    here = parser.add_argument_group("vLLM in this process")
    here.add_argument("--engine-arg", action="append", default=[], metavar="KEY=VALUE", help="of vllm.LLM; repeatable")
    here.add_argument("--chat-template", metavar="FILE", help="for a tokenizer without one")
    server = parser.add_argument_group("a server")
    server.add_argument("--server", metavar="URL", help="such as http://localhost:8000/v1; key: OPENAI_API_KEY")
    server.add_argument("--concurrency", type=int, default=64, help="requests at a time (64)")
    server.add_argument("--retries", type=int, default=4, help="of a request (4)")
    server.add_argument("--timeout", type=float, default=1800.0, help="seconds for a request (1800)")
    server.add_argument("--standard-fields", action="store_true", help="send no fields of vLLM's own, such as top_k")
    parser.set_defaults(run=run)
