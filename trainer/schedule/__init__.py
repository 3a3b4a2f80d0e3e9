"""Trains every period once, unattended: the parts of ``schedule_training.py``.

``cron`` says when a period is due and which outcome an exit code means, the ledger (``trainer.ledger.periods``) which
host may train it, ``readiness`` whether there is enough to train on. The training runs in its own process
(``training_process``), and ``notify`` sends the result to a webhook. ``commanded`` runs what somebody asked for on a
console. "Now" is the database's clock: on any number of hosts, with any clocks, a period is trained exactly once, and a
dead host's period is taken over.
"""
