"""Who samples: vLLM in this process, or any server that speaks OpenAI's chat protocol.

Both take requests one by one and give completions in the order in which they are done.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from typing import Protocol as Interface

from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.protocol import OFF, Sampling

TRUNCATED, FAILED = "length", "failed"
"""Values of `Completion.finish`: the response reached its limit; the request failed for good."""
_SHOWN = 300
_REFUSED = (400, 413, 422)
"""Statuses of a server that will not have this request, such as one that is too long for the context."""


@dataclass(frozen=True)
class Request:
    """One response that is wanted."""

    benchmark: str
    problem: str
    run: int
    sample: int
    messages: list[dict[str, str]]
    seed: int


@dataclass(frozen=True)
class Completion:
    """One response.

    Attributes:
        text: empty if the model ended at once, or the request failed.
        tokens: generated, the end token included; None where a server does not say.
        finish: ``stop``, `TRUNCATED`, `FAILED`, or what else a server calls it.
        error: name and message of a failure.
        own: the failure is the request's own: it says nothing about others.
    """

    request: Request
    text: str
    tokens: int | None
    finish: str
    error: str = ""
    own: bool = False


class Engine(Interface):
    """What samples."""

    kind: str

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion for every request, in any order; a request that fails is a completion that says so.

        Raises:
            EvaluationError: nothing can be sampled at all.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def failed(request: Request, error: BaseException | str, own: bool = False) -> Completion:
    """The completion of a request that failed for good; ``own`` as in `Completion`."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return Completion(request, "", None, FAILED, " ".join(text.split())[:_SHOWN], own)


class Server:
    """A server that speaks OpenAI's chat completions, such as ``vllm serve``.

    Args:
        url: its address, ending in ``/v1``.
        model: as the server calls it.
        key: for the server.
        concurrency: requests at a time.
        retries: of a request that the server refuses for the moment (408, 409, 429, 5xx) or that finds no connection,
            with growing pauses.
        timeout: of one request, in seconds.
        template: arguments of the chat template.
        standard: send only fields of OpenAI's own protocol.

    Raises:
        EvaluationError: no server there, or not with this model; a setting that the standard fields cannot carry.
    """

    kind = "server"

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "EMPTY",
        concurrency: int = 64,
        retries: int = 4,
        timeout: float = 1800.0,
        template: dict[str, Any] | None = None,
        standard: bool = False,
    ):
        try:
            from openai import OpenAI
        except ImportError as e:
            raise EvaluationError("--server needs the package openai: pip install 'verl-grail[eval]'") from e

        self.url, self.model, self.concurrency = url, model, concurrency
        self.template, self.standard = dict(template or {}), standard
        if standard and self.template:
            raise EvaluationError(
                f"--standard-fields cannot carry arguments of the chat template ({', '.join(self.template)}): add "
                "--no-template-args, and set them on the server"
            )
        self._answered = False
        self._refused: set[tuple[str, str]] = set()
        self.client = OpenAI(base_url=url, api_key=key, timeout=timeout, max_retries=retries)
        self._look()

    def _look(self) -> None:
        import openai

        try:
            served = [m.id for m in self.client.with_options(timeout=20.0).models.list().data]
        except (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError) as e:
            raise EvaluationError(
                f"--server {self.url} cannot be used ({type(e).__name__}): start it, or mend the address or the key"
            ) from e
        except (openai.OpenAIError, ValueError, AttributeError, TypeError):
            return  # a server that does not list its models may still serve them
        if served and self.model not in served:
            raise EvaluationError(f"--server {self.url} does not serve {self.model}; it serves {', '.join(served)}")

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """See `Engine`."""
        if self.standard and sampling.top_k != OFF:
            raise EvaluationError(f"--standard-fields cannot carry top_k={sampling.top_k}: add --top-k -1")
        work: SimpleQueue[Request | None] = SimpleQueue()
        done: SimpleQueue[Completion | BaseException] = SimpleQueue()
        stopped = Event()

        def serve() -> None:
            while (request := work.get()) is not None and not stopped.is_set():
                try:
                    done.put(self._one(request, sampling))
                except BaseException as e:  # the caller's to see
                    done.put(e)

        # daemons: the process does not wait for what is on its way when it is interrupted, as it would for a pool's
        for number in range(self.concurrency):
            Thread(target=serve, name=f"request-{number}", daemon=True).start()
        source, waiting = iter(requests), 0
        try:
            while True:
                for request in itertools.islice(source, 2 * self.concurrency - waiting):
                    work.put(request)
                    waiting += 1
                if not waiting:
                    return
                found = done.get()
                waiting -= 1
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            stopped.set()
            for _ in range(self.concurrency):
                work.put(None)

    def fields(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        """What is sent."""
        body: dict[str, Any] = {}
        if not self.standard:
            # vllm serve fills what is not sent from the model's generation_config.json; vLLM in this process does not
            body = {"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0}
            if self.template:
                body["chat_template_kwargs"] = self.template
        return {
            "model": self.model,
            "messages": request.messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            "extra_body": body,
        }

    def _one(self, request: Request, sampling: Sampling) -> Completion:
        import openai

        try:
            reply = self.client.chat.completions.create(**self.fields(request, sampling))
        except (openai.OpenAIError, ValueError) as e:  # ValueError: a reply that is no JSON
            return failed(request, e, self._own(request, e))
        self._answered = True
        choices = getattr(reply, "choices", None)
        if not choices:
            return failed(request, f"no choices in the reply: {reply!r}")
        usage = getattr(reply, "usage", None)
        tokens = getattr(usage, "completion_tokens", None)
        return Completion(request, spoken(choices[0].message), tokens, str(choices[0].finish_reason))

    def _own(self, request: Request, error: Exception) -> bool:
        """Whether a failure is this request's: it was refused, by a server that takes others.

        Before the first answer the server may refuse whatever it is sent; then each problem says so once, not each of
        its samples.
        """
        if getattr(error, "status_code", None) not in _REFUSED:
            return False
        problem = request.benchmark, request.problem
        own = self._answered or problem in self._refused
        self._refused.add(problem)
        return own

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def spoken(message: Any) -> str:
    """Text of a reply.

    A server with a reasoning parser takes the thinking out: it is put back, so that the grader reads what the model
    wrote.
    """
    content = getattr(message, "content", None) or ""
    for name in ("reasoning_content", "reasoning"):
        thinking = getattr(message, name, None)
        if thinking:
            return f"<think>{thinking}</think>{content}" if content else f"<think>{thinking}"
    return content


class Vllm:
    """vLLM in this process; samples come back as they are done.

    Args:
        model: folder or name.
        template: arguments of the chat template.
        chat_template: the template itself, for a tokenizer without one.
        options: of ``vllm.LLM`` (``tensor_parallel_size``, ``dtype``, ``max_model_len``, ...).
        in_flight: requests handed to vLLM at a time; more than it can run together.

    Raises:
        EvaluationError: vLLM is not installed, the model cannot be loaded, or has no chat template.
    """

    kind = "vllm"

    def __init__(
        self,
        model: str,
        template: dict[str, Any] | None = None,
        chat_template: str | None = None,
        options: dict[str, Any] | None = None,
        in_flight: int = 2048,
    ):
        try:
            from vllm import LLM
        except ImportError as e:
            raise EvaluationError(f"vLLM cannot be imported ({e}): install it, or name a --server") from e
        try:
            self.llm = LLM(model=model, **(options or {}))
        except (OSError, ValueError, TypeError, RuntimeError) as e:
            raise EvaluationError(f"vLLM cannot load {model}: {e}") from e
        self.template, self.in_flight = dict(template or {}), in_flight
        self.tokenizer = self.llm.get_tokenizer()
        self.chat_template = chat_template
        self._last: tuple[Any, list[int]] = (None, [])
        if chat_template is None and not getattr(self.tokenizer, "chat_template", None):
            raise EvaluationError(f"the tokenizer of {model} has no chat template: give one with --chat-template FILE")

    @property
    def context(self) -> int:
        """Longest prompt and response together, in tokens."""
        return int(self.llm.llm_engine.model_config.max_model_len)

    def tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a chat, as verl's rollout makes them."""
        if self._last[0] is messages:  # samples of a problem follow each other
            return self._last[1]
        found: Any = self.tokenizer.apply_chat_template(
            list(messages),
            chat_template=self.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.template,
        )
        self._last = (messages, list(found))
        return self._last[1]

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """See `Engine`."""
        if sampling.max_tokens >= self.context:
            raise EvaluationError(
                f"--max-tokens {sampling.max_tokens} does not fit into the model's context of {self.context} tokens: "
                "lower it"
            )
        engine, source = self.llm.llm_engine, iter(requests)
        at_hand: dict[str, Request] = {}
        exhausted = False
        while True:
            batch: list[tuple[Request, list[int]]] = []
            while not exhausted and len(at_hand) + len(batch) < self.in_flight:
                request = next(source, None)
                if request is None:
                    exhausted = True
                    break
                ids = self.tokens(request.messages)
                if len(ids) + sampling.max_tokens > self.context:
                    yield failed(request, self._too_long(len(ids), sampling.max_tokens), own=True)
                else:
                    batch.append((request, ids))
            self._enqueue(batch, sampling, at_hand)
            if not at_hand:
                if exhausted:
                    return
                continue
            outputs: list[Any] = engine.step()
            for output in outputs:
                if output.finished:
                    done = output.outputs[0]
                    request = at_hand.pop(output.request_id)
                    yield Completion(request, done.text, len(done.token_ids), str(done.finish_reason))

    def _too_long(self, prompt: int, response: int) -> str:
        return (
            f"prompt_too_long: a prompt of {prompt} tokens and {response} of response do not fit into the model's "
            f"context of {self.context}"
        )

    def _enqueue(self, batch: list[tuple[Request, list[int]]], sampling: Sampling, at_hand: dict[str, Request]) -> None:
        if not batch:
            return
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=request.seed,
            )
            for request, _ in batch
        ]
        prompts: list[Any] = [{"prompt_token_ids": ids} for _, ids in batch]
        names = self.llm.enqueue(prompts, params, use_tqdm=False)
        # vLLM appends a random suffix to its own ids, and answers under the id without it
        at_hand |= {(n.rpartition("-")[0] or n): r for n, (r, _) in zip(names, batch, strict=True)}

    def close(self) -> None:
        """Drop the model."""
        engine = getattr(self.llm.llm_engine, "engine_core", None)
        if engine is not None and hasattr(engine, "shutdown"):
            engine.shutdown()
        del self.llm
