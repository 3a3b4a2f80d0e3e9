"""One module a command; each has ``main(argv) -> exit code``. ``scripts/`` and the console scripts call these."""
