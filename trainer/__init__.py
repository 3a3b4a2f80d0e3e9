"""From the game's log to a better model in the agents' hands; ``docs/architecture.md`` has the picture.

``pipeline`` names the stages in order: ``plan``, ``judge``, ``train``, ``evaluate``, ``promote``; ``serve`` follows
what was promoted. A stage takes one type of ``types`` and gives the next, is handed its own section of ``config``, and
never imports another. What must survive a crash is in ``ledger``; ``run`` is the life of one training command, which
tells its ``progress``. ``evidence`` is what an evaluation found, ``statistics`` how sure that is, ``inference`` runs
the model, and ``faults`` finds the row that makes a stage fail; ``rewards`` is how a verdict becomes an advantage,
``abilities`` what a backend can do, ``advice`` what a release would do where an agent asks, and ``patterns`` what goes
wrong again and again. ``lessons`` keeps what verdicts taught, each a ``lesson``, and finds it when an agent decides;
``prompts`` learns from verdicts which change to a prompt helps. ``workers`` are where units of reading and judging run,
``flow`` the queues between stages, and ``probed`` a server that may be gone. Around them are ``world``, ``certify``,
``schedule``, ``report``, ``console`` and ``cli``; ``hosting`` is what both servers have in common. Reading and writing
the game's tables is ``data_bridge``'s business.
"""
