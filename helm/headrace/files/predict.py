"""One request to $URL with $BODY; fails unless it is answered 200 with something in it."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

headers = {"content-type": "application/json"}
if os.environ.get("KEY"):
    headers["authorization"] = "Bearer " + os.environ["KEY"]
request = urllib.request.Request(os.environ["URL"], os.environ["BODY"].encode(), headers)
for _ in range(30):
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        break
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        if error.code != 503:
            sys.exit(f"{error.code}: {said}")
        print(f"not ready yet: {said}", flush=True)
    except OSError as error:
        print(f"no answer yet: {error}", flush=True)
    time.sleep(10)
else:
    sys.exit("no prediction within 5 minutes")
results = found.get("data") or found.get("choices") or found.get("outputs") or found
if not results:
    sys.exit(f"an empty answer: {found}")
print(json.dumps(results)[:500])
