"""The console: pages and an API that show the ledger live, start and stop trainings, promote and roll back.

``app`` puts it together. Every request passes ``door`` (Host, Origin, key, rate), with ``keys`` and ``limits``. A call
of the API is a declaration (``operations``), from which ``openapi`` writes the document; ``training_api``,
``reading_api``, ``release_api``, ``reward_api``, ``advice_api``, ``ingest_api``, ``memory_api``, ``prompt_api`` and
``policy_api`` (with ``policy_bodies``) have the calls, of which ``policy_app`` serves the last alone;
``start_settings`` what a start may set, ``prometheus`` the metrics. ``pages``, ``board_pages``, ``lesson_pages`` and
``prompt_pages`` are the pages, ``visits`` renders them and reads their forms, ``shown`` writes and draws their figures,
``log_check`` keeps what check_windows says. ``live`` polls the ledger once for all open streams, ``host`` takes
trainings that were asked for, ``upkeep`` forgets what is old and tells a webhook, ``watch`` is *Now* in a terminal.
``services`` is what routes work with, ``problems`` every error in one shape. What it shows it reads through
``ledger.read``; what it does goes through the ledger or ``trainer.run``, and it knows no stage.
"""
