"""All durable state: the only room with SQL on schema ``hindsight``, and what makes things happen exactly once.

``states`` has the states and their legal transitions as data, checked before a state changes. ``runs`` stores runs,
planned windows and exclusions; ``verdicts`` what the judge was paid for, ``order_decisions`` what it was not asked and
why, ``scores`` what it said of whom, ``judged_groups`` in which group; ``units`` are what workers claim and commit, and
``shared_budget`` is what they may spend together; ``batches`` each gradient step, with the game's own rows in the same
transaction, ``batch_records`` what a batch consists of, ``rewards`` how its advantages came about, ``replays`` which
groups may be trained again, ``carried`` which wait for the next pass, ``curriculum`` which windows were drawn, and
``observations`` what went wrong in them; ``checkpoints`` and ``releases`` what was trained and what agents were given;
``evaluations`` and ``certificates`` the evidence. ``model_lock`` and ``periods`` say which process may work, with
leases and a fencing token, ``turns`` one at a time for the rest; a ``heartbeat`` notices a database that is gone;
``clock`` says what time it is. ``events`` are what happened, for those who watch; ``commands`` what was asked of any
host, ``audit`` who asked, ``ingest_keys`` who may send rows, ``rewards_asked`` scores on demand, ``advice`` what was
proposed to whom and what came of it, ``forget`` one agent. ``lessons`` are stored once, ``lesson_search`` finds those
that may be shown, ``lesson_upkeep`` merges and retires them, ``lesson_admissions`` are those from outside on their way
through the gate, ``injections`` what agents were shown. ``prompts`` are kept with where they come from and which
release gives them to whom, ``policy`` is what their policy experienced and learnt. ``simulation`` stores the simulated
market, ``run_folder`` mirrors a run for people, and ``lineage`` traces a checkpoint to its windows and back. Code that
only displays data reads through ``read``.
"""
