"""The commands: each file adds those of its `app`, and nothing else names it.

An app without a name holds commands of `slipstream` itself, one with a name is a group. Commands
whose result is files, so that what they say may be lost, are named in their file's `FILE_COMMANDS`.
"""
