"""The settings file: one frozen tree, validated once, with errors that say what would be right.

`load.load(path)` reads a file. `load.parse` and `load.dump` convert settings from and to plain
data. Each section of the file is a class in a module of its own; `docs/settings.md` lists every
field. Import each name from the module that defines it: a gateway reads tenants, and must not
import what only models need.
"""
