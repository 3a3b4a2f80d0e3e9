"""Trains every period once, unattended: what ``schedule_training.py`` is made of.

``cron`` knows when a period is due and what its end is called, the ledger (``trainer.ledger.periods``) which host may
train it, ``readiness`` whether there is enough to train on. The training is a process of its own
(``training_process``), and ``notify`` tells a webhook what came of it. "Now" is the database's clock: on any number of
hosts, with any clocks, a period is trained exactly once, and a dead host's period is taken over.
"""
