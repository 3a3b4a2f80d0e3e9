"""Advice: what the promoted release would do, shown only where it is right often enough.

``proposal`` makes one proposal and a score of several replies, ``advisor`` asks the release and decides who is shown
what, ``settle`` finds out what was right from the game's own facts and log, ``trajectory`` gives a proposal that was
taken back to the log. ``endpoint`` opens the release where it is served, ``recalibrate`` fits its confidence anew. What
confidence means is calibrated in ``trainer.statistics.calibration``; the rows are in ``trainer.ledger.advice``.
"""
