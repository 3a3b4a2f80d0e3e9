"""Every setting once: sections that a stage is handed, the sources they are filled from, one class a command."""
