"""Advice: what the promoted release would do, shown only where it is right often enough.

``proposal`` makes one proposal and a score of several replies, ``advisor`` asks the release and decides who is shown
what, ``settle`` finds out what was right from the game's own facts and log, ``trajectory`` gives a proposal that was
taken back to the log. What confidence means is calibrated in ``trainer.statistics.calibration``; the rows are in
``trainer.ledger.advice``.
"""
