"""One self-contained page a run: no network, no script, opens from disk.

In come the facts that ``trainer.ledger.read`` gathers, and nothing else. ``verdict`` says them in words, ``pictures``
chooses the ``charts``, ``drawing`` is what those are made of, and ``page`` puts it all together. All but writing the
file is pure. What could not be measured is said to be so, and every stand-in is called one.
"""
