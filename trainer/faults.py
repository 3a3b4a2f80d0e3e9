"""A fault that a row causes costs that row: which errors can be a row's, and the search for the rows that cause one.

Agents write the rows, so a stage must expect that one of them makes somebody else's program raise: a chat template, a
tokenizer, ART's types, the model itself. Such a row is excluded with the reason ``row_fault``, for good. What the
machine, the network or a setting causes stops the run as before: a row must not be blamed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from data_bridge.errors import BackendError, HindsightError
from data_bridge.models import AgentTrajectory, LLMCall, Step
from data_bridge.window_ids import window_of
from data_bridge.worlds.own_class import WorldFault

T = TypeVar("T")

_NOT_A_ROWS = (HindsightError, OSError, MemoryError, ImportError)
_OF_THE_MACHINE = ("CUDA", "cuBLAS", "NCCL", "[enforce fail at alloc_cpu", "cannot schedule new futures")


class RowFaults(BackendError):
    """A step failed because of these rows, and changed nothing: without them it can be made."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__(f"{len(faults)} rows of the batch made the step fail; it is made without them.")
        self.faults = dict(faults)
        """What happened, by trajectory id."""


def may_be_a_rows(error: BaseException) -> bool:
    """Whether a row can have caused ``error``: not if it is the machine's, the network's, a setting's or a stop."""
    if isinstance(error, WorldFault):
        return True
    if not isinstance(error, Exception) or isinstance(error, _NOT_A_ROWS):
        return False
    # torch says out of memory with a class of its own or a plain RuntimeError. Only the text's beginning is torch's:
    # what follows in another library's error may be the row's own words.
    is_torch = isinstance(error, RuntimeError) and str(error).startswith(_OF_THE_MACHINE)
    return not is_torch and type(error).__name__ != "OutOfMemoryError"


def control_row(model: str, purpose: str) -> AgentTrajectory:
    """A row that is certainly sound: where even this one fails, no row is to blame."""
    then = datetime.fromtimestamp(0, UTC)
    call = LLMCall(model=model, user_prompt="Yes or no?", response="Yes", purpose=purpose)
    return AgentTrajectory("control", "control", window_of(then), 1, then, then, [Step(llm_calls=[call])], "", 0)


def described(error: BaseException, doing: str) -> str:
    """The fault as an exclusion's detail. Only the error's class: its text may quote the row, or a secret."""
    return f"{type(error).__name__} while it was {doing}"


def bisected(
    rows: Sequence[T], fault_of: Callable[[Sequence[T]], BaseException | None]
) -> list[tuple[T, BaseException]]:
    """The rows that alone give a fault, each with it, found by halving; ``fault_of`` tries some of the rows.

    Empty if the rows together give none, or only together.
    """
    fault = fault_of(rows) if rows else None
    if fault is None:
        return []
    if len(rows) == 1:
        return [(rows[0], fault)]
    middle = len(rows) // 2
    return [*bisected(rows[:middle], fault_of), *bisected(rows[middle:], fault_of)]


def first_fault(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """The fault to report: one that we can explain is preferred."""
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [faults]
    while waiting:
        fault = waiting.pop(0)
        if isinstance(fault, BaseExceptionGroup):
            waiting.extend(fault.exceptions)
        else:
            leaves.append(fault)
    return next((leaf for leaf in leaves if isinstance(leaf, HindsightError)), leaves[0])
