"""The commands: one module each, with ``main(argv) -> exit code``, called by ``scripts/`` and the console scripts.

``frame`` wraps all of them: settings in, one sentence on an error, the documented exit code out. ``train_mmo``,
``evaluate``, ``promote``, ``serve``, ``schedule_training``, ``lineage`` (with ``lineage_rewards``), ``report``,
``calibrate_advice`` and ``console`` are about models; ``check_windows`` (with ``check_tables`` and
``check_window_view``), ``judge_windows``, ``certify_judge``, ``spawn_test_agents``, ``run_migrations`` and ``traces``
(with ``group_files``) about data; ``lessons`` about what verdicts taught, ``prompts`` about prompts and their policy;
``tables`` draws for people, and ``output`` prints for all of them: nothing else does; ``listening`` is how the two
servers come up and go down. ``--help`` works without torch and art, which a command imports when its work begins.
"""
