"""The settings file: one frozen tree, validated once, with errors that say what would be right.

`load.load(path)` reads a file; `load.parse` and `load.dump` are its way from and to plain data. The
sections are classes of their own, one file each; `docs/settings.md` lists every field. Import each
name from the file that has it: a gateway reads tenants and needs nothing of models.
"""
