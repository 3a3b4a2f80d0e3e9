"""Every setting once: a field is its flag, its variable, its key in ``run.toml`` and its help.

``settings`` says what a setting, a section and a command are. ``sections`` (data, groups, judge, secrets) and
``training`` (model, backend, training, evaluation, gate, promotion) hold the sections: small frozen models, of which a
stage is handed its own and nothing else. ``commands`` and ``data_commands`` have one class a command, made of sections.
``arguments`` is the command line with its help, ``sources`` fills a command by precedence: flag, variable, ``.env``,
``run.toml``, default. ``derived`` has what follows from several settings. Secrets are sections of their own and never
in a file that is written; an unknown name is an error that says which was meant.
"""
