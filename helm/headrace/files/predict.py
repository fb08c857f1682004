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
LIMIT_S = 270  # of all tries: `helm test` itself waits for 300 s
end = time.monotonic() + LIMIT_S
while (left := end - time.monotonic()) > 0:
    try:
        with urllib.request.urlopen(request, timeout=min(30, left)) as answer:
            found = json.load(answer)
        break
    except ValueError as error:
        sys.exit(f"the answer is no JSON: {error}")
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        if error.code != 503:
            sys.exit(f"{error.code}: {said}")
        print(f"not ready yet: {said}", flush=True)
    except OSError as error:
        print(f"no answer yet: {error}", flush=True)
    time.sleep(10)
else:
    sys.exit(f"no prediction within {LIMIT_S} s")
results = found
if isinstance(found, dict):
    results = next((found[name] for name in ("data", "choices", "outputs") if name in found), found)
if not results:
    sys.exit(f"an empty answer: {found}")
print(json.dumps(results)[:500])
