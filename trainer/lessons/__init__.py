"""Lessons: what verdicts taught, distilled, consolidated, and found again when an agent decides."""
