"""One self-contained page a run.

``facts`` reads what there is to show (``judging``, ``windows`` and ``trained_pnl`` are parts of it) into
``types``; ``verdict`` says it in words, ``pictures`` chooses the ``charts``, ``drawing`` is what those are made of, and
``page`` puts it all together.
"""
