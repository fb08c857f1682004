"""Copies the folder $FROM of an object store to the folder $TO, but for files that are there.

A file is there if it has the size that the store says. What is no longer at $FROM stays at $TO.
"""

import os

import fsspec


def fill(source, target):
    store, root = fsspec.core.url_to_fs(source)
    root = root.rstrip("/")
    found = store.find(root, detail=True)
    if not found:
        raise SystemExit(f"{source} has no files")
    for path, about in sorted(found.items()):
        place = os.path.join(target, path[len(root) + 1 :])
        if os.path.exists(place) and os.path.getsize(place) == about["size"]:
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        store.get_file(path, f"{place}.part")
        os.replace(f"{place}.part", place)
        print(f"{path}: {about['size']:,} bytes", flush=True)


if __name__ == "__main__":
    fill(os.environ["FROM"], os.environ["TO"])
