"""A file in YAML to data that pydantic has checked, or to sentences that say what is wrong with it:
file, line, path, what would be right. Settings, scenarios and what stands beside them are read so.
"""
