"""Every setting once: a field is its flag, its variable, its key in ``run.toml`` and its help.

``settings`` defines what a setting, a section and a command are. ``sections`` (data, groups, judge, secrets) and
``training`` (model, backend, training, evaluation, gate, promotion) contain the sections: small frozen models; a stage
receives its own and nothing else; ``prompts`` has those of prompts and their policy. ``commands``, ``data_commands``,
``console``, ``lessons`` and ``prompt_commands`` have one class per command, composed of sections. ``arguments`` is the
command line with its help, ``sources`` fills a command by precedence: flag, variable, ``.env``, ``run.toml``, default.
``derived`` has values that follow from several settings. Secrets have their own sections and are never written to a
file; an unknown name is an error that suggests the closest known one.
"""
