"""Postgres and the producer's formats: the only room with SQL on the game's tables. Imports nothing of ``trainer``.

In: ``database`` opens the team's Postgres by its ``connection_url`` or the ``embedded`` one, ``migrate`` brings it up
to date, ``discovery`` finds windows, ``reader`` fetches their rows within each agent's share (``shares``), ``lookup``
those that our ledger names, ``decode`` and ``outcomes`` turn those into the types of ``models``, ``stakes`` tells what
an agent did and what the game's prices made of it, ``replies`` what a model's reply asks for, and ``quality`` decides
which rows can be used and why the others cannot, asking one of the ``worlds`` whatever depends on the kind of game.
``survey`` does all of this and keeps only numbers (``survey_types``) in a ``long_list``, of large windows part by part
(``window_parts``); ``art_converter`` turns judged trajectories into what ART trains on: ``authorship`` says whose
policy wrote a reply and how it was sampled, ``scoring`` which tokens it has.

Out: agents log through a ``recorder``, which holds a ``recording`` for each trajectory, keeps its row in a ``spool`` on
disk and inserts it with ``trajectory_rows``; ``record_openai`` does the logging for a chat client. ``agent_loop`` is an
agent's whole loop, with lessons that ``lesson_client`` fetches and ``lesson_prompts`` puts into its prompt, and prompts
that ``prompt_client`` fetches and ``agent_prompts`` finds again in the log. ``ingest`` stores rows that agents send to
the console. ``agents`` says under which id an agent records, ``outcomes`` and ``facts`` write and read what really
happened, ``game_writes`` writes what the game reads back after training, ``traces`` copies rows from one database to
another, and ``faulty_rows`` has the faults of real tables, for tests.

Shared by all: ``window_ids`` names the hours, ``errors`` are one sentence with an exit code each, ``disk`` says when a
disk is full, ``redaction`` keeps secrets out of all text that leaves the process, ``private_files`` closes the home to
other users, and ``child_environment`` is what a process that runs a model for us may know.

Importing a module of this package imports neither torch nor art; ``art_converter`` imports art when it is called.
"""
