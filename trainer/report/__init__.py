"""One self-contained page per run: no network, no script, opens from disk.

The only input is the facts that ``trainer.ledger.read`` gathers. ``verdict`` states them in words, ``pictures`` selects
the ``charts``, ``drawing`` has their parts, and ``page`` puts it all together. Everything except writing the file is
pure. The page names what could not be measured, and labels every stand-in as one.
"""
