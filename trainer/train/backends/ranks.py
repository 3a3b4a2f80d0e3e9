"""A step on several processes of this machine (``--train-workers``): this process is the first rank and leads.

Rank r of N computes the gradient of every N-th packed sequence, divided by the tokens of the whole update. When every
rank has said that it is ready, the gradients are summed in one message, and each rank makes the same update of its own
copy. All copies must then be equal to the bit, or the step fails. Everything else is done here alone: packing, what the
answers aim at, balance, the search for a bad row, and the checkpoint, which the other ranks load for the next step.

Every rank sends heartbeats, whatever it does. One that is gone, whose heartbeats stop, or that takes much longer than
this process, is given up for the rest of the run. The step has changed nothing that lasts, so those left make it again
from its checkpoint.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from data_bridge.child_environment import start_child
from data_bridge.errors import BackendError
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.cpu_step import Numbered, StepSettings, StepTally, accumulate
from trainer.train.backends.gradient_exchange import PATIENCE, digest_of, meet, sum_gradients
from trainer.train.backends.rank_orders import Done, Failed, LoadModel, Meet, RollCall, Share, Start, Sum, receive, send

logger = logging.getLogger(__name__)

SILENT = 20.0
"""Seconds without a heartbeat after which a rank is given up. If it stops in a sum, ``PATIENCE`` passes before."""
_LAST_BEAT = 2.0
"""Seconds for a heartbeat that is due: the first rank may not have looked for long."""
_STARTING = 180.0
"""Seconds for a rank to import torch and load the model, or a checkpoint."""
_LEAST_WAIT, _WAIT_FACTOR = 60.0, 10.0
"""A rank may take this many times as long as the first one took for its own share, and at least so many seconds."""


class RankLost(Exception):
    """Ranks are gone. Those left have given up the update; the step is to be made again from its checkpoint."""


@dataclass(slots=True)
class _Rank:
    process: subprocess.Popen[bytes]
    connection: Connection
    _heard: float = field(default_factory=monotonic)

    def order(self, order: object) -> None:
        """A rank that does not take it is ended: it may have got a part."""
        try:
            send(self.connection, order)
        except OSError as error:
            self.end()
            raise RankLost from error
        self._heard = monotonic()

    def answer(self, seconds: float) -> Done | Failed:
        """Its next answer. A rank without one in time, or without heartbeats, is ended: others may wait for it too."""
        until = monotonic() + seconds
        try:
            while self.connection.poll(self._wait(until)):
                self._heard = monotonic()
                answer: Done | Failed | None = receive(self.connection)
                if answer is not None:
                    return answer
        except (EOFError, OSError) as error:
            self.end()
            raise RankLost from error
        said = "does not answer" if monotonic() >= until else f"has sent no heartbeat for {SILENT:g} s"
        logger.warning("process %d of --train-workers %s and is given up", self.process.pid, said)
        self.end()
        raise RankLost

    def _wait(self, until: float) -> float:
        now = monotonic()
        return max(0.0, min(until - now, max(self._heard + SILENT - now, _LAST_BEAT)))

    def is_called(self, number: int) -> bool:
        """Whether it takes the call of this ``number``. What it sent before is read: it says nothing about now."""
        if self.process.poll() is not None:
            return False
        try:
            while self.connection.poll():
                receive(self.connection)
            self.order(RollCall(number))
        except (EOFError, OSError, RankLost):
            return False
        return True

    def is_there(self, number: int, seconds: float) -> bool:
        """Whether it answers the call of this ``number``; answers to earlier orders are thrown away."""
        try:
            until = monotonic() + seconds
            while True:
                answer = self.answer(max(0.0, until - monotonic()))
                if isinstance(answer, Done) and answer.called == number:
                    return True
        except RankLost:
            return False

    def end(self) -> None:
        if not self.connection.closed:
            self.connection.close()
        self.process.kill()
        self.process.wait()


class Ranks:
    """The other ranks, and this process as the first. For one thread, as the policy."""

    def __init__(self, others: Sequence[_Rank], threads: int) -> None:
        self._others = list(others)
        self._threads = threads
        self._folder = Path(tempfile.mkdtemp(prefix="hindsight-ranks-"))
        self._meetings = self._calls = 0
        self._patience = _LEAST_WAIT
        self._group: Any = None
        self.seconds_summing = 0.0
        """Of the last step, for the benchmark and its metric."""

    @classmethod
    def start(cls, number: int, base: Path, *, lora_rank: int, seed: int, threads: int) -> Ranks:
        """``number`` ranks with this process, which share ``threads`` (0: all cores). BackendError if one fails."""
        each = max(1, (threads or os.cpu_count() or 1) // number)
        ranks = cls([_started(each) for _ in range(number - 1)], each)
        try:
            ranks._ask_all(LoadModel(base, lora_rank, seed, each), _STARTING)
            ranks._meet()
        except RankLost as error:
            ranks.close()
            raise BackendError(
                "A process of --train-workers did not start, perhaps for want of memory: each holds the model. "
                "Use fewer."
            ) from error
        except BaseException:
            ranks.close()
            raise
        return ranks

    @property
    def size(self) -> int:
        return 1 + len(self._others)

    @property
    def processes(self) -> list[int]:
        """The ids of the other ranks' processes."""
        return [one.process.pid for one in self._others]

    @contextmanager
    def step(self, policy: CpuPolicy, checkpoint: Path | None) -> Iterator[None]:
        """A step of all ranks, from the weights of ``policy``, which are those of ``checkpoint`` (None: step 0)."""
        self.seconds_summing = 0.0
        alone = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            self._ask_all(Start(checkpoint, digest_of(policy)), _STARTING)
            yield
        except RankLost:
            raise
        except BaseException:
            if self._call() > 0:  # every rank waits for the next order again, whatever the step raised
                self._meet()
            raise
        finally:
            torch.set_num_threads(alone)

    def accumulate(
        self, policy: CpuPolicy, numbered: Sequence[Numbered], trained: int, settings: StepSettings
    ) -> tuple[float, dict[int, StepTally]]:
        """The gradient of all sequences in ``policy``, their loss and what was noted of each. RankLost if one is gone.

        An error of any rank is raised here when all have answered, so that every rank waits for the next order.
        """
        size = self.size
        for place, rank in enumerate(self._others, start=1):
            rank.order(Share([_sendable(one) for one in numbered[place::size]], trained, settings))
        started, fault = monotonic(), None
        try:
            loss, noted = accumulate(policy, numbered[::size], trained, settings)
        except Exception as error:
            fault = error
        self._patience = max(_LEAST_WAIT, _WAIT_FACTOR * (monotonic() - started))
        for answer in self._answers(self._patience):
            if isinstance(answer, Failed):
                fault = fault or answer.error
            elif answer.noted is not None and fault is None:
                noted |= answer.noted
        if fault is not None:
            raise fault
        if not self._others:
            return loss, noted
        for rank in self._others:
            rank.order(Sum())
        started = monotonic()
        try:
            loss = sum_gradients(self._group, policy, loss)
        except RuntimeError as error:  # gloo: a rank is gone since it said that it was ready
            raise RankLost from error
        self.seconds_summing += monotonic() - started
        return loss, noted

    def agree(self, policy: CpuPolicy) -> None:
        """After the update: BackendError unless every rank holds the weights of ``policy``."""
        digest = digest_of(policy)
        if any(one.digest != digest for one in self._done(self._patience)):
            raise BackendError(
                "The ranks of the training came to different weights, so nothing was saved: use --train-workers 1."
            )

    def drop_lost(self) -> None:
        """Give up the ranks that are gone or do not answer; those left form a new group."""
        before, self._group = self.size, None
        while True:
            self._call()
            try:
                self._meet()
                break
            except RankLost:
                continue
        logger.warning("%d of %d ranks of the training are gone; the step is made again.", before - self.size, before)

    def close(self) -> None:
        for rank in self._others:
            rank.end()
        self._others = []
        self._group = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _meet(self) -> None:
        """A process group of all ranks; each meeting has a place of its own."""
        self._group = None
        if not self._others:
            return
        self._meetings += 1
        place = self._folder / str(self._meetings)
        for number, rank in enumerate(self._others, start=1):
            rank.order(Meet(place, number, self.size))
        try:
            self._group = meet(place, 0, self.size)
        except RuntimeError as error:
            raise RankLost from error
        self._done(PATIENCE)

    def _call(self) -> int:
        """Wait until every rank has no order left; those that do not answer are ended. How many these are."""
        self._calls += 1
        called = [one for one in self._others if one.is_called(self._calls)]
        here = [one for one in called if one.is_there(self._calls, self._patience)]
        gone = [one for one in self._others if one not in here]
        for one in gone:
            one.end()
        self._others = here
        return len(gone)

    def _ask_all(self, order: object, seconds: float) -> None:
        for rank in self._others:
            rank.order(order)
        self._done(seconds)

    def _done(self, seconds: float) -> list[Done]:
        """What all ranks answer to an order that fails for no row's sake: one that could not do it is ended."""
        done = []
        for rank, answer in zip(self._others, self._answers(seconds), strict=True):
            if isinstance(answer, Failed):
                rank.end()
                raise RankLost from answer.error
            done.append(answer)
        return done

    def _answers(self, seconds: float) -> Iterator[Done | Failed]:
        until = monotonic() + seconds
        for rank in self._others:
            yield rank.answer(max(0.0, until - monotonic()))


def _started(threads: int) -> _Rank:
    process, ours = start_child("trainer.train.backends.rank_process", threads=threads)
    # A rank that is stopped reads nothing: without a deadline, sending it its share would never end.
    deadline = struct.pack("ll", int(PATIENCE), 0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)
    return _Rank(process, Connection(ours.detach()))


def _sendable(one: Numbered) -> Numbered:
    """A sequence is a slice of the whole batch's tensors, and pickling a slice sends all of what it was cut from."""
    number, sequence = one
    return number, replace(sequence, inputs={name: value.clone() for name, value in sequence.inputs.items()})
