"""Lessons: what verdicts taught, distilled, consolidated, and found again when an agent decides.

The input is a ``JudgedGroup``; what comes out, later, is a list of ``FoundLesson``. ``stage`` takes judged groups
beside a training and keeps what ``distil`` makes of them, in words that ``wording`` made safe, while ``shown`` reads
which lessons a decision was shown; ``consolidate`` merges what says the same and forgets. ``open`` opens the store;
``retrieval`` stores and looks up as of a time, with ``memory_index`` for large games (``nearest`` compares vectors).

Nothing is shown to a decision before it was known, or from a window that an evaluation waits to rule on; the ledger
decides that in one statement, whatever ranked the lessons. Nothing is distilled twice, nor from what was recalled.
"""
