"""The memory of everything: the only room with SQL on schema ``hindsight``, and what makes things happen once.

``states`` has the states and their legal transitions as data, asked before a state is changed. ``runs`` keeps runs,
planned windows and exclusions; ``verdicts`` what the judge was paid for; ``batches`` each gradient step, with the
game's own rows in the same transaction; ``checkpoints`` and ``releases`` what was trained and what agents were given;
``evaluations`` and ``certificates`` the evidence. ``model_lock`` and ``periods`` say which process may work, with
leases and a fencing token; ``clock`` what time it is. ``simulation`` remembers the simulated market, ``run_folder``
mirrors a run for people, and ``lineage`` walks from a checkpoint to its windows and back. Whoever only shows something
reads through ``read``.
"""
