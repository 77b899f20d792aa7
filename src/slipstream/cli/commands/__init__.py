"""The commands: every module here contributes its Typer `app` and is discovered by name.

An app without a name adds commands to `slipstream` itself, one with a name adds a group. Commands
that produce files, and keep running if standard output is lost, are listed in `FILE_COMMANDS`.
"""
