"""Weight transfer between CPU processes for ``trainer.v1.trainer_mode=separate_async``: backend "zmq_cpu".

The trainer refuses "naive" (verl/trainer/ppo/v1/trainer_separate_async.py:68), and verl's other backends need an
accelerator's transport. This one packs the weights into buckets and sends them over TCP from actor rank 0 to every
rollout worker, by the contract of verl/checkpoint_engine/base.py:CheckpointEngine.

A receiver asks for each bucket, and rank 0 answers once all of them have asked. The request is at once the handshake
(no receiver can miss the first bucket, as with PUB/SUB) and the back-pressure (one bucket in flight). Headers are JSON
and not pickles, so a stray connection cannot run code. The bytes are those of the actor's tensors: no rounding.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import ray
import torch
import zmq
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)

from verl_grail.cpu import enabled

BACKEND = "zmq_cpu"
"""The name for ``actor_rollout_ref.rollout.checkpoint_engine.backend``."""

ALIGNMENT = 16
"""Bytes. The receiver views each slice of a bucket in the tensor's own dtype, which must start on its own size."""

Weights = Generator[tuple[str, torch.Tensor], None, None]


def encode(metas: list[TensorMeta]) -> bytes:
    """The header of a bucket; an empty list closes the transfer."""
    rows = [
        [m.name, list(m.shape), str(m.dtype).removeprefix("torch."), m.chunk_offset, m.chunk_size, m.offset]
        for m in metas
    ]
    return json.dumps(rows).encode()


def decode(header: bytes) -> list[TensorMeta]:
    """The inverse of `encode`."""
    return [
        TensorMeta(name, torch.Size(shape), getattr(torch, dtype), *span)
        for name, shape, dtype, *span in json.loads(header)
    ]


class ZmqCpuCheckpointEngine(CheckpointEngine):
    """One sender (actor rank 0), any number of receivers (rollout workers).

    Args:
        bucket_size: bytes per bucket, from ``checkpoint_engine.update_weights_bucket_megabytes``.
        is_master: whether this process is actor rank 0.
        timeout_s: seconds to wait for the other side, from ``checkpoint_engine.engine_kwargs.zmq_cpu.timeout_s``.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_s: float = 600.0) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.timeout_s = timeout_s
        self.rank = -1
        self.n_receivers = 0
        self._socket: zmq.Socket | None = None

    def prepare(self) -> str | None:
        """Open the sender's socket and say where it listens; receivers have nothing to prepare."""
        self.finalize()  # a transfer that raised half-way left its socket open
        if not self.is_master:
            return None
        ip = ray.util.get_node_ip_address().strip("[]")
        self._socket = self._open(zmq.ROUTER)
        host = f"tcp://[{ip}]" if ":" in ip else f"tcp://{ip}"
        return f"{host}:{self._socket.bind_to_random_port(host)}"

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[str | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Rank 0 sends, ranks 1.. receive; the other actor workers (-1) hold no part of the transfer."""
        if metadata[0] is None:
            raise RuntimeError(f"{BACKEND}: the first actor worker is not rank 0, so nobody listens for the receivers")

        def common(n: int) -> dict[str, list[Any]]:
            return {"n_receivers": [rollout_world_size] * n, "address": [metadata[0]] * n}

        actor = {"rank": [0] + [-1] * (actor_wg_world_size - 1), **common(actor_wg_world_size)}
        rollout = {"rank": list(range(1, rollout_world_size + 1)), **common(rollout_world_size)}
        return actor, rollout

    def init_process_group(self, rank: int, n_receivers: int, address: str) -> None:
        """Connect a receiver to the sender; the actor side only takes note of the sizes."""
        self.rank, self.n_receivers = rank, n_receivers
        if rank > 0:
            self._socket = self._open(zmq.DEALER)
            self._socket.connect(address)

    def finalize(self) -> None:
        """Close the socket. verl calls this when both sides are done, so there is nothing left to linger for."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    @torch.no_grad()
    async def send_weights(self, weights: Weights, global_steps: int | None = None) -> None:
        """Send the weights bucket by bucket.

        Actor workers beside rank 0 walk the generator all the same: producing a weight is collective over them.
        """
        if self.rank < 0:
            for _ in weights:
                pass
            return
        bucket, metas, end = bytearray(self.bucket_size), [], 0
        view = torch.frombuffer(bucket, dtype=torch.uint8)
        async for meta, chunk in split_weight_chunks(weights, self.bucket_size):
            start = -(-end // ALIGNMENT) * ALIGNMENT
            if start + meta.chunk_size > self.bucket_size:
                await asyncio.to_thread(self._answer, metas, memoryview(bucket)[:end])
                metas, start = [], 0
            meta.offset, end = start, start + meta.chunk_size
            view[start:end] = chunk
            metas.append(meta)
        if metas:
            await asyncio.to_thread(self._answer, metas, memoryview(bucket)[:end])
        await asyncio.to_thread(self._answer, [], b"")

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield (name, weight) as they arrive; each weight is a view into its bucket."""
        async for name, weight in merge_weight_chunks(self._chunks(), self.bucket_size):
            yield name, weight

    async def _chunks(self) -> AsyncGenerator[tuple[TensorMeta, torch.Tensor], None]:
        """Ask for buckets until an empty one, and yield their slices."""
        while True:
            header, payload = await asyncio.to_thread(self._ask)
            metas = decode(header)
            if not metas:
                return
            bucket = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            for meta in metas:
                yield meta, bucket[meta.offset : meta.offset + meta.chunk_size]

    def _open(self, kind: int) -> zmq.Socket:
        socket = zmq.Context.instance().socket(kind)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVTIMEO, int(self.timeout_s * 1000))
        return socket

    def _answer(self, metas: list[TensorMeta], payload: bytes | memoryview) -> None:
        # Collect every request before answering any: a fast receiver's next one must not count for a slow one.
        askers = [self._receive("a rollout worker")[0] for _ in range(self.n_receivers)]
        header = encode(metas)
        for asker in askers:
            self._socket.send_multipart([asker, header, payload])

    def _ask(self) -> list[bytes]:
        self._socket.send(b"")
        return self._receive("actor rank 0")

    def _receive(self, whom: str) -> list[bytes]:
        try:
            return self._socket.recv_multipart()
        except zmq.Again:
            raise TimeoutError(
                f"{BACKEND}: no message from {whom} for {self.timeout_s} s "
                f"(actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.{BACKEND}.timeout_s)"
            ) from None


def register() -> None:
    """Register the backend with verl."""
    CheckpointEngineRegistry.register(BACKEND)(ZmqCpuCheckpointEngine)


if enabled():
    register()
