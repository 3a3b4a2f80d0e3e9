"""A rank of a step besides the first: a process that holds the same policy and computes its share of the gradient.

It is told what to do by the first rank through a pair of sockets (``rank_orders``). It writes nothing: the
checkpoint is the first rank's. It ends with the sockets, and within a second when the first rank was killed.
``rank_process`` starts it.
"""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any

import torch

from data_bridge.child_environment import sendable
from data_bridge.errors import BackendError
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.cpu_step import StepSettings, accumulate, begin_update, finish_update
from trainer.train.backends.gradient_exchange import digest_of, meet, sum_gradients
from trainer.train.backends.rank_orders import Done, Failed, LoadModel, Meet, RollCall, Share, Start, Sum, receive, send


class Rank:
    """Carries out one order after another."""

    def __init__(self) -> None:
        self._loaded: CpuPolicy | None = None
        self._group: Any = None
        self._settings: StepSettings | None = None
        self._loss = 0.0

    def carry_out(self, order: object) -> Done:
        match order:
            case LoadModel():
                torch.set_num_threads(order.threads)
                self._loaded = CpuPolicy(order.base, rank=order.lora_rank, learning_rate=1e-4, seed=order.seed)
            case Meet():
                self._group = None  # the old one is left before the new one is formed
                self._group = meet(order.place, order.rank, order.size)
            case Start():
                self._start(order)
            case RollCall():
                return Done(called=order.number)
            case Share():
                self._settings = order.settings
                begin_update(self._policy, order.settings)
                self._loss, noted = accumulate(self._policy, order.numbered, order.trained, order.settings)
                return Done(noted=noted)
            case Sum():
                assert self._settings is not None
                loss = sum_gradients(self._group, self._policy, self._loss)
                finish_update(self._policy, self._settings, loss)
                return Done(digest=digest_of(self._policy))
        return Done()

    def _start(self, order: Start) -> None:
        if digest_of(self._policy) == order.digest:
            return
        if order.checkpoint is None:
            self._policy.reset()
        else:
            self._policy.load(order.checkpoint)
        if digest_of(self._policy) != order.digest:
            raise BackendError("A rank of the training does not come to the weights of the first: see --train-workers.")

    @property
    def _policy(self) -> CpuPolicy:
        assert self._loaded is not None
        return self._loaded


def serve(connection: Connection, sending: threading.Lock) -> None:
    """Answer every order until the connection ends. Heartbeats are sent on it too, one at a time with the answers."""
    rank = Rank()
    while True:
        try:
            order = receive(connection)
        except (EOFError, OSError):
            return
        try:
            answer: Done | Failed = rank.carry_out(order)
        except Exception as error:
            answer = Failed(sendable(error))
        try:
            with sending:
                send(connection, answer)
        except OSError:
            return
