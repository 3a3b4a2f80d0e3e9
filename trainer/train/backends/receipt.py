"""What is known about a batch that was sent to a remote trainer: the line that the ledger keeps for it.

The server has no idempotency key and no list of jobs. What tells a batch that was taken from one that was not
is its step: a batch sent when the newest checkpoint was N was taken if there is a checkpoint after N. So the
receipt carries that step. The policy step of the batch will not do: an overlapping pipeline prepares a batch
some steps before it is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

UNCONFIRMED = "unconfirmed"
"""In place of the job's id: the batch is being sent, or was sent and the answer never came."""
REFUSED = "refused"
"""In place of the job's id: the server has said that it did not take the batch."""

_TEXT = re.compile(r"(?P<job>\S+) \(after step (?P<step>\d+), (?P<tokens>\d+) tokens, sent (?P<sent>\S+)\)")


@dataclass(frozen=True, slots=True)
class Receipt:
    """One sending of one batch."""

    job: str
    """The job's id, or ``unconfirmed`` or ``refused``."""
    after_step: int
    """The newest checkpoint when the batch was sent."""
    tokens: int
    sent: datetime

    def __str__(self) -> str:
        return f"{self.job} (after step {self.after_step}, {self.tokens} tokens, sent {self.sent:%Y-%m-%dT%H:%M:%SZ})"

    @classmethod
    def before_sending(cls, after_step: int, tokens: int) -> Receipt:
        return cls(UNCONFIRMED, after_step, tokens, datetime.now(UTC).replace(microsecond=0))

    @classmethod
    def parse(cls, text: str, policy_step: int) -> Receipt:
        """The receipt that was stored as ``text``; a bare job id counts as sent at ``policy_step``."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return cls(text, policy_step, 0, datetime.now(UTC))
        sent = datetime.strptime(match["sent"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return cls(match["job"], int(match["step"]), int(match["tokens"]), sent)

    def taken_as(self, job: str) -> Receipt:
        return replace(self, job=job)

    def refused(self) -> Receipt:
        return replace(self, job=REFUSED)

    @property
    def job_id(self) -> str | None:
        return None if self.job in (UNCONFIRMED, REFUSED) else self.job

    @property
    def is_refused(self) -> bool:
        return self.job == REFUSED
