"""Copies a folder of an object store to another folder, but for files that are there already.

A file is there if it was copied from this address, and store and folder still have that version of
it: `NOTES` in the folder says which. What is no longer at the address stays in the folder.
"""

import json
import os
import sys

import fsspec

# Of each file: its address, its size, and the first of these that the store tells of it.
NOTES = ".headrace-fill.json"
MARKS = ("ETag", "etag", "md5Hash", "checksum", "LastModified", "last_modified", "updated", "mtime")


def fill(source, target):
    store, root = fsspec.core.url_to_fs(source)
    root = root.rstrip("/")
    found = store.find(root, detail=True)
    if not found:
        raise SystemExit(f"{source} has no files")
    notes = read(target)
    for path, about in sorted(found.items()):
        name = path[len(root) + 1 :]
        place = os.path.join(target, name)
        mark = next((str(about[each]) for each in MARKS if about.get(each)), "")
        note = [store.unstrip_protocol(path), about["size"], mark]
        there = os.path.exists(place) and os.path.getsize(place) == about["size"]
        if there and notes.get(name) == note:
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        store.get_file(path, f"{place}.part")
        if notes.pop(name, None):
            write(target, notes)  # nothing may say that the file is still the old one
        os.replace(f"{place}.part", place)
        notes[name] = note
        write(target, notes)
        print(f"{path}: {about['size']:,} bytes", flush=True)


def read(target):
    try:
        with open(os.path.join(target, NOTES)) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def write(target, notes):
    place = os.path.join(target, NOTES)
    with open(f"{place}.part", "w") as file:
        json.dump(notes, file)
    os.replace(f"{place}.part", place)


if __name__ == "__main__":
    fill(*sys.argv[1:])
